"""Features of samples, summarised by class: how many there are, their means and their variances."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from winnow.core import Arrays


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

    def arrays(self) -> Arrays:
        return {"counts": self.counts, "mean": self.mean, "variance": self.variance}


TOO_FEW_TOLD = "counts classes of which too few samples are there to be told"


def could_be_told(counts: NDArray[np.int64], min_rows: int, count_step: int) -> bool:
    """Whether counts are such as an honest client tells: of no class with few samples, and multiples of the step.
    Whoever claims few rows is allowed much, since chance does much to them.
    """
    told = counts[counts > 0]
    return bool((told % count_step == 0).all() and (told >= min_rows // count_step * count_step).all())
