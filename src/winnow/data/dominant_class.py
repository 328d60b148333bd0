"""The partition of the paper's section 5.1: on each client one class accounts for a given share of the samples."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from winnow.core import DataError
from winnow.data.partitions import Assignment, Partition, RowPool, class_labels
from winnow.data.types import Indices

NOBODY = -1


class DominantClass(Partition):
    """One class has `share` of a client's rows, the others make up the rest. Dominant classes rotate over the clients.

    All clients have the same size: the largest for which the classes suffice. Rows beyond that stay unused.
    """

    name: Literal["dominant-class"] = "dominant-class"
    share: float = Field(default=0.6, gt=0, le=1)

    def assign(self, pool: RowPool, clients: int, rng: np.random.Generator) -> Assignment:
        present, labels = np.unique(class_labels(pool, self.name), return_inverse=True)
        if len(present) < 2:
            raise DataError("partition dominant-class needs at least two classes; use iid")
        demand = _Demand(
            share=self.share,
            rows_of_class=np.bincount(labels),
            clients_of_class=np.bincount(np.arange(clients) % len(present), minlength=len(present)),
        )
        size = demand.largest_size(pool.size // clients)
        if size == 0:
            raise DataError(
                f"partition dominant-class: {pool.size} rows in {len(present)} classes are not enough for {clients}"
                f" clients with share = {self.share}; use fewer clients or another share"
            )
        dominant = np.arange(clients) % len(present)
        return _deal(labels, dominant, size, demand.dominant_rows(size), rng)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Demand:
    """How many rows of which class the clients need."""

    share: float
    rows_of_class: Indices
    clients_of_class: Indices

    def dominant_rows(self, size: int) -> int:
        return round(self.share * size)

    def largest_size(self, upper: int) -> int:
        """By bisection; 0 where not even one row a client can be had."""
        lower = 0
        while lower < upper:
            middle = (lower + upper + 1) // 2
            lower, upper = (middle, upper) if self._fits(middle) else (lower, middle - 1)
        return lower

    def _fits(self, size: int) -> bool:
        """Whether each class suffices where it dominates, and what then remains suffices for everybody else.

        The rest of a client may come from any class but its dominant one, so by Hall's theorem it is enough to look at
        each dominant class alone and at all of them together.
        """
        dominant = self.dominant_rows(size)
        remaining = self.rows_of_class - self.clients_of_class * dominant
        rest = self.clients_of_class * (size - dominant)
        of_other_classes = remaining.sum() - remaining
        return bool((remaining >= 0).all() and rest.sum() <= remaining.sum() and (rest <= of_other_classes).all())


def _deal(labels: Indices, dominant: Indices, size: int, dominant_rows: int, rng: np.random.Generator) -> Assignment:
    """[clients, size] rows: first the dominant ones, then the rest."""
    clients = len(dominant)
    dealt = np.empty((clients, size), dtype=np.int64)
    free = np.ones(len(labels), dtype=bool)
    for label in np.unique(dominant):
        holders = np.flatnonzero(dominant == label)
        rows = rng.permutation(np.flatnonzero(labels == label))[: len(holders) * dominant_rows]
        dealt[holders, :dominant_rows] = rows.reshape(len(holders), dominant_rows)
        free[rows] = False
    rest = size - dominant_rows
    rows = rng.permutation(np.flatnonzero(free))
    slots = np.full(len(rows), NOBODY, dtype=np.int64)
    slots[: clients * rest] = np.repeat(dominant, rest)
    rows = _swap_out_dominant(rows, labels, slots, rng)
    dealt[:, dominant_rows:] = rows[: clients * rest].reshape(clients, rest)
    return Assignment(rows=rng.permuted(dealt, axis=1).ravel(), offsets=np.arange(clients + 1) * size)


def _swap_out_dominant(rows: Indices, labels: Indices, slots: Indices, rng: np.random.Generator) -> Indices:
    """Exchange rows so that no slot of a client holds that client's dominant class.

    A swap with a row of another class that lies elsewhere mends one slot and harms none, and `_Demand._fits` made sure
    that there are enough of those.
    """
    rows = rows.copy()
    for label in np.unique(slots[slots != NOBODY]):
        ours = slots == label
        same = labels[rows] == label
        wrong = np.flatnonzero(ours & same)
        partners = rng.permutation(np.flatnonzero(~ours & ~same))[: len(wrong)]
        rows[wrong], rows[partners] = rows[partners], rows[wrong]
    return rows
