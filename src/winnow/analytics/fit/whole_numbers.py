"""Sums of real numbers as whole numbers: fixed point, as fine as 62 bits allow."""

import numpy as np
from numpy.typing import NDArray

BITS = 61


class FixedPoint:
    """Sums whose size is at most `largest` in steps of 2^-k, with k as large as it can be."""

    def __init__(self, largest: float) -> None:
        self._scale = 2.0 ** (BITS - 1 - int(np.ceil(np.log2(max(largest, 1.0)))))

    def whole(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.rint(values * self._scale).astype(np.int64)

    def real(self, opened: NDArray[np.object_]) -> NDArray[np.float64]:
        return np.array([int(each) / self._scale for each in opened])


def upper(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """The entries of a symmetric matrix on and above its diagonal."""
    return matrix[np.triu_indices(len(matrix))]


def symmetric(entries: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size)] = entries
    return matrix + np.triu(matrix, 1).T
