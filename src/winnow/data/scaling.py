"""Bring features to a range that models learn from, and the targets of a regression with them."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.data.preprocessing import IMAGE_NDIM
from winnow.data.settings import Scale
from winnow.data.types import DataSet, RawDataSet, Reals


class Scaling(Protocol):
    """Raw features to scaled ones."""

    def __call__(self, values: NDArray[Any]) -> Reals: ...


@dataclass(frozen=True, kw_only=True)
class FixedScaling:
    """(value - shift) / width with published constants, one for all or one a channel."""

    shift: float | tuple[float, ...] = 0.0
    width: float | tuple[float, ...] = 1.0

    def __call__(self, values: NDArray[Any]) -> Reals:
        return _affine(values, _by_channel(self.shift, values.ndim), _by_channel(self.width, values.ndim))


def minmax(values: NDArray[Any]) -> Reals:
    """Each column (or image channel) to [0, 1]; a constant one to 0."""
    axes = _sample_axes(values)
    low = values.min(axis=axes, keepdims=True)
    return _affine(values, low, _nonzero(values.max(axis=axes, keepdims=True) - low))


def standard(values: NDArray[Any]) -> Reals:
    """Each column (or image channel) to mean 0 and standard deviation 1; a constant one to 0."""
    axes = _sample_axes(values)
    mean = values.mean(axis=axes, keepdims=True, dtype=np.float64)
    return _affine(values, mean, _nonzero(values.std(axis=axes, keepdims=True, dtype=np.float64)))


def unscaled(values: NDArray[Any]) -> Reals:
    return values.astype(np.float32, copy=False)


SCALINGS: dict[Scale, Scaling] = {"standard": standard, "minmax": minmax, "none": unscaled}


def to_data_set(raw: RawDataSet, name: str, scale: Scale, default: Scaling) -> DataSet:
    """The data set, scaled as asked for. Tokens stay what they are."""
    if raw.tokens and scale in ("standard", "minmax"):
        raise DataError(f"{name}: tokens are identifiers and cannot be scaled; remove data.scale")
    scaling = unscaled if raw.tokens else SCALINGS.get(scale, default)
    return DataSet(
        name=name,
        x=raw.x.astype(np.int64, copy=False) if raw.tokens else scaling(raw.x),
        y=scaling(raw.y) if raw.classes is None else raw.y.astype(np.int64, copy=False),
        classes=raw.classes,
        owners=raw.owners,
        test_rows=raw.test_rows,
    )


def _affine(values: NDArray[Any], shift: NDArray[Any], width: NDArray[Any]) -> Reals:
    scaled = values.astype(np.result_type(values.dtype, np.float32), order="C")
    scaled -= shift.astype(scaled.dtype)
    scaled /= width.astype(scaled.dtype)
    return scaled.astype(np.float32, copy=False)


def _sample_axes(values: NDArray[Any]) -> tuple[int, ...]:
    return (0, 2, 3) if values.ndim == IMAGE_NDIM else (0,)


def _by_channel(constants: float | tuple[float, ...], ndim: int) -> NDArray[np.float64]:
    return np.reshape(np.asarray(constants, dtype=np.float64), (1, -1, *(1,) * (ndim - 2)))


def _nonzero(width: NDArray[Any]) -> NDArray[Any]:
    return np.where(width > 0, width, 1)
