"""Answers of a crowd as arrays, for all workers at once or for one."""

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class AnswerArrays:
    """Worker `workers[a]` gave item `items[a]` the value `values[a]`; nobody answers an item twice.

    A value is the number of one of `classes` labels; where `classes` is 0, it is a number in [−1, 1].
    """

    items: Indices
    workers: Indices
    values: Numbers | Indices
    item_count: int
    worker_count: int
    classes: int

    @property
    def labels(self) -> Indices:
        return self.values.astype(np.int64)

    def of_each_worker(self) -> "list[AnswerArrays]":
        """Every worker's own answers."""
        order = np.argsort(self.workers, kind="stable")
        ends = np.cumsum(np.bincount(self.workers, minlength=self.worker_count))[:-1]
        return [
            AnswerArrays(
                items=self.items[own],
                workers=np.zeros(len(own), np.int64),
                values=self.values[own],
                item_count=self.item_count,
                worker_count=1,
                classes=self.classes,
            )
            for own in np.split(order, ends)
        ]

    def as_one_worker(self) -> "AnswerArrays":
        """The same answers, as if one worker had given them all."""
        return replace(self, workers=np.zeros_like(self.workers), worker_count=1)

    def mean_by_worker(self, values: Numbers, empty: float) -> Numbers:
        """The mean over each worker's answers; `empty` for who gave none."""
        counts = np.bincount(self.workers, minlength=self.worker_count)
        sums = np.bincount(self.workers, values, self.worker_count)
        return np.where(counts > 0, sums / np.maximum(counts, 1), empty)

    def sum_by_item(self, values: Numbers) -> Numbers:
        """The sums over each item's answers, of which each has a row of values; zeros for items without any."""
        sums = np.zeros((self.item_count, values.shape[1]))
        for place, column in enumerate(values.T):
            sums[:, place] = np.bincount(self.items, column, self.item_count)
        return sums
