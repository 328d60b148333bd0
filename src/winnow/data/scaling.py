"""Bring features to a range that models learn from; in a regression of tables the targets too."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from winnow.data.arrays import IMAGE_NDIM, Features


class Scaling(Protocol):
    """Raw features to scaled ones."""

    def __call__(self, values: NDArray[Any]) -> Features: ...


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """(value - shift) / width with published constants, one for all or one a channel."""

    shift: float | tuple[float, ...] = 0.0
    width: float | tuple[float, ...] = 1.0

    def __call__(self, values: NDArray[Any]) -> Features:
        return _affine(values, _by_channel(self.shift, values.ndim), _by_channel(self.width, values.ndim))


def minmax(values: NDArray[Any]) -> Features:
    """Each column (or image channel) to [0, 1]; a constant one to 0."""
    axes = _sample_axes(values)
    low = values.min(axis=axes, keepdims=True)
    return _affine(values, low, _nonzero(values.max(axis=axes, keepdims=True) - low))


def standard(values: NDArray[Any]) -> Features:
    """Each column (or image channel) to mean 0 and standard deviation 1; a constant one to 0."""
    axes = _sample_axes(values)
    mean = values.mean(axis=axes, keepdims=True, dtype=np.float64)
    return _affine(values, mean, _nonzero(values.std(axis=axes, keepdims=True, dtype=np.float64)))


def unscaled(values: NDArray[Any]) -> Features:
    return values.astype(np.float32)


def _affine(values: NDArray[Any], shift: NDArray[Any], width: NDArray[Any]) -> Features:
    scaled = values.astype(np.result_type(values.dtype, np.float32))
    scaled -= shift.astype(scaled.dtype)
    scaled /= width.astype(scaled.dtype)
    return scaled.astype(np.float32, copy=False)


def _sample_axes(values: NDArray[Any]) -> tuple[int, ...]:
    return (0, 2, 3) if values.ndim == IMAGE_NDIM else (0,)


def _by_channel(constants: float | tuple[float, ...], ndim: int) -> NDArray[np.float64]:
    return np.reshape(np.asarray(constants, dtype=np.float64), (1, -1, *(1,) * (ndim - 2)))


def _nonzero(width: NDArray[Any]) -> NDArray[Any]:
    return np.where(width > 0, width, 1)
