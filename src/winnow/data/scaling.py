"""How features are brought to a range that models learn from: numbers that are fitted to them, or published ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.data.preprocessing import IMAGE_NDIM, Affine
from winnow.data.settings import Scale


class Scaling(Protocol):
    """The numbers that scale these values; None: they stay as they are."""

    def __call__(self, values: NDArray[Any]) -> Affine | None: ...


@dataclass(frozen=True, kw_only=True)
class FixedScaling:
    """(value - shift) / width with published constants, one for all or one a channel."""

    shift: float | tuple[float, ...] = 0.0
    width: float | tuple[float, ...] = 1.0

    def __call__(self, values: NDArray[Any]) -> Affine:
        return _affine(np.asarray(self.shift, np.float64), np.asarray(self.width, np.float64))


def minmax(values: NDArray[Any]) -> Affine:
    """Each column (or image channel) to [0, 1]; a constant one to 0."""
    axes = _sample_axes(values)
    low = values.min(axis=axes)
    return _affine(low, _nonzero(values.max(axis=axes) - low))


def standard(values: NDArray[Any]) -> Affine:
    """Each column (or image channel) to mean 0 and standard deviation 1; a constant one to 0."""
    axes = _sample_axes(values)
    return _affine(values.mean(axis=axes, dtype=np.float64), _nonzero(values.std(axis=axes, dtype=np.float64)))


def unscaled(values: NDArray[Any]) -> None:
    """Nothing is done."""


def standard_tables(values: NDArray[Any]) -> Affine | None:
    """The rule for a user's own data: what has two dimensions is standardised, which wild values spoil less than they
    spoil a range; images and the rest stay as they are.
    """
    return standard(values) if values.ndim <= 2 else None


SCALINGS: dict[Scale, Scaling] = {"standard": standard, "minmax": minmax, "none": unscaled}


def scaling_for(scale: Scale, default: Scaling = standard_tables) -> Scaling:
    return SCALINGS.get(scale, default)


def fit_scaling(
    scaling: Scaling, values: NDArray[Any], where: str, describe: Callable[[tuple[int, ...]], str]
) -> Affine | None:
    """The numbers for these values. Of those too large for it, the largest is told as `describe` names its place."""
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            return scaling(values)
        except OverflowError:
            place = tuple(int(each) for each in np.unravel_index(np.abs(values).argmax(), values.shape))
            told = f"{describe(place)} is {values[place]:g}, too large to scale"
            raise DataError(f"{where}: {told}; correct it") from None


def _affine(shift: NDArray[Any], width: NDArray[Any]) -> Affine:
    if not (np.isfinite(shift).all() and np.isfinite(width).all()):
        raise OverflowError("values are too large to scale")
    return Affine(shift=tuple(shift.reshape(-1).tolist()), width=tuple(width.reshape(-1).tolist()))


def _sample_axes(values: NDArray[Any]) -> tuple[int, ...]:
    return (0, 2, 3) if values.ndim == IMAGE_NDIM else (0,)


def _nonzero(width: NDArray[Any]) -> NDArray[Any]:
    return np.where(width > 0, width, 1)
