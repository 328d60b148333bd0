"""Features of samples, summarised by class: how many there are, their means and their variances."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from winnow.core import Arrays
from winnow.learn.representation_profile import StreamingMoments


@dataclass(frozen=True, kw_only=True)
class ClassMoments:
    """For each of C classes, the mean and the variance (divided by n) of each of f features.

    A class without samples, or with too few to be told, has the count 0 and zeros in its place.
    """

    counts: NDArray[np.int64]
    """[C]"""
    mean: NDArray[np.float32]
    """[C, f]"""
    variance: NDArray[np.float32]
    """[C, f]"""

    @classmethod
    def of(cls, part: Arrays) -> Self:
        """The moments that named arrays hold."""
        return cls(
            counts=np.asarray(part["counts"], np.int64),
            mean=np.asarray(part["mean"], np.float32),
            variance=np.asarray(part["variance"], np.float32),
        )

    @classmethod
    def by_owner(cls, moments: StreamingMoments, classes: int) -> list[Self]:
        """Of several owners, each of whom has so many of the groups, one for each class."""
        owners = (array.reshape(-1, classes, *array.shape[1:]) for array in moments.moments())
        return [
            cls(counts=counts, mean=mean, variance=variance) for counts, mean, variance in zip(*owners, strict=True)
        ]

    @classmethod
    def pooled(cls, parts: Sequence["ClassMoments"]) -> Self:
        """Of the samples of several holders taken together, class by class."""
        counts = np.stack([part.counts for part in parts])
        share = (counts / np.maximum(counts.sum(0), 1))[:, :, None]
        means = np.stack([part.mean for part in parts]).astype(np.float64)
        mean = (share * means).sum(0)
        variance = (share * (np.stack([part.variance for part in parts]) + (means - mean) ** 2)).sum(0)
        return cls(counts=counts.sum(0), mean=mean.astype(np.float32), variance=variance.astype(np.float32))

    def coarse(self, min_rows: int, count_step: int) -> Self:
        """What may be told: nothing of a class with fewer than `min_rows` samples, and of others the count rounded down
        to a multiple of `count_step`.
        """
        counts = np.where(self.counts >= min_rows, self.counts // count_step * count_step, 0)
        mean, variance = (np.where(counts[:, None] > 0, each, np.float32(0)) for each in (self.mean, self.variance))
        return replace(self, counts=counts, mean=mean, variance=variance)

    def arrays(self) -> Arrays:
        return {"counts": self.counts, "mean": self.mean, "variance": self.variance}
