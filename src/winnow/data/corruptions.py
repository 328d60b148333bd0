"""Ways in which clients' data go bad (section 5.1 and appendix B.2), each for a fraction of the clients.

A new way is a class derived from `Corruption`; a configuration chooses it by its `name`. Values are in units of the
features as the model sees them, that is, after scaling.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from winnow.core import Choice, DataError
from winnow.data.preprocessing import IGNORED, IMAGE_NDIM, NO_LABEL
from winnow.data.types import DataSet, Examples, Features, Reals

Edges: TypeAlias = Literal["wrap", "nearest"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ValueRanges:
    """The values a set takes: features by column of a table or channel of an image, targets by column."""

    low: NDArray[np.float32]
    high: NDArray[np.float32]
    target_low: NDArray[np.float32]
    target_high: NDArray[np.float32]
    classes: int | None

    @classmethod
    def of(cls, dataset: DataSet) -> Self:
        axes = (0, 2, 3) if dataset.x.ndim == IMAGE_NDIM else (0,)
        keep = dataset.x.ndim == IMAGE_NDIM
        targets = dataset.y.astype(np.float32, copy=False)
        return cls(
            low=dataset.x.min(axis=axes, keepdims=keep),
            high=dataset.x.max(axis=axes, keepdims=keep),
            target_low=targets.min(axis=0),
            target_high=targets.max(axis=0),
            classes=dataset.classes,
        )


class Corruption(Choice):
    """A way to spoil the samples of `fraction` of the clients."""

    needs_numbers: ClassVar[bool] = True
    """Whether the features must be numbers. Labels can be spoiled whatever the features are."""

    name: str
    fraction: float = Field(ge=0, le=1)

    @abstractmethod
    def apply(self, clean: Examples, ranges: ValueRanges, rng: np.random.Generator) -> Examples:
        """Spoiled samples of the same shape. What is passed in stays as it is."""


class IrrelevantFeatures(Corruption):
    """Features have nothing to do with the task: smooth random patterns for images, uniform draws for tables."""

    name: Literal["irrelevant"] = "irrelevant"

    def apply(self, clean: Examples, ranges: ValueRanges, rng: np.random.Generator) -> Examples:
        unit = rng.random(clean.x.shape, dtype=np.float32)
        if clean.x.ndim == IMAGE_NDIM:
            unit = _stretched(_blurred(unit, sigma=max(clean.x.shape[-2:]) / 8, edges="wrap"))
        return Examples(x=ranges.low + unit * (ranges.high - ranges.low), y=clean.y)


class Blur(Corruption):
    """Images seen through a Gaussian filter whose standard deviation is `sigma` pixels."""

    name: Literal["blur"] = "blur"
    sigma: float = Field(default=2.0, gt=0)

    def apply(self, clean: Examples, ranges: ValueRanges, rng: np.random.Generator) -> Examples:
        if clean.x.ndim != IMAGE_NDIM:
            raise DataError("corruption blur needs images [n, channels, height, width]; use noise for tables")
        return Examples(x=_blurred(clean.x, sigma=self.sigma, edges="nearest"), y=clean.y)


class SaltAndPepper(Corruption):
    """Each pixel turns black or white with probability `density`: the lowest or highest value of the set."""

    name: Literal["salt-and-pepper"] = "salt-and-pepper"
    density: float = Field(default=0.3, ge=0, le=1)

    def apply(self, clean: Examples, ranges: ValueRanges, rng: np.random.Generator) -> Examples:
        shape = clean.x[:, :1].shape if clean.x.ndim == IMAGE_NDIM else clean.x.shape
        draw = rng.random(shape, dtype=np.float32)
        salted = np.where(draw < self.density / 2, ranges.low, ranges.high)
        return Examples(x=np.where(draw < self.density, salted, clean.x), y=clean.y)


class FeatureNoise(Corruption):
    """Gaussian noise of standard deviation `sd` is added to the features."""

    name: Literal["noise"] = "noise"
    sd: float = Field(default=0.1, ge=0)

    def apply(self, clean: Examples, ranges: ValueRanges, rng: np.random.Generator) -> Examples:
        noise = rng.standard_normal(clean.x.shape, dtype=np.float32)
        return Examples(x=clean.x + np.float32(self.sd) * noise, y=clean.y)


class Pollution(Corruption):
    """A share of the feature values is invalid, as from a broken sensor.

    Out-of-range values are finite: they lie one to `max_distance` widths of the feature's range beyond either end.
    """

    name: Literal["pollution"] = "pollution"
    share: float = Field(default=1.0, ge=0, le=1)
    kind: Literal["out-of-range", "nan", "inf", "mixed"] = "out-of-range"
    max_distance: float = Field(default=10.0, ge=1)

    def apply(self, clean: Examples, ranges: ValueRanges, rng: np.random.Generator) -> Examples:
        polluted = rng.random(clean.x.shape, dtype=np.float32) < self.share
        return Examples(x=np.where(polluted, self._invalid(clean.x.shape, ranges, rng), clean.x), y=clean.y)

    def _invalid(self, shape: tuple[int, ...], ranges: ValueRanges, rng: np.random.Generator) -> Reals:
        above = rng.random(shape, dtype=np.float32) < 0.5
        width = np.where(ranges.high > ranges.low, ranges.high - ranges.low, np.float32(1))
        distance = width * rng.uniform(1, self.max_distance, shape).astype(np.float32)
        finite: Reals = np.where(above, ranges.high + distance, ranges.low - distance)
        nan = np.full(shape, np.nan, dtype=np.float32)
        infinite = np.where(above, np.float32(np.inf), np.float32(-np.inf))
        match self.kind:
            case "out-of-range":
                return finite
            case "nan":
                return nan
            case "inf":
                return infinite
            case "mixed":
                draw = rng.random(shape, dtype=np.float32)
                mixed: Reals = np.where(draw < 1 / 3, finite, np.where(draw < 2 / 3, nan, infinite))
                return mixed


class FlippedLabels(Corruption):
    """A share of the labels is wrong: another class at random, or a target mirrored within the range of its column."""

    needs_numbers = False
    name: Literal["flipped-labels"] = "flipped-labels"
    share: float = Field(default=1.0, ge=0, le=1)

    def apply(self, clean: Examples, ranges: ValueRanges, rng: np.random.Generator) -> Examples:
        flipped = rng.random(len(clean)) < self.share
        if ranges.classes is None:
            mirrored = ranges.target_low + ranges.target_high - clean.y
            return Examples(x=clean.x, y=np.where(flipped[:, None], mirrored, clean.y).astype(np.float32))
        if ranges.classes < 2:
            raise DataError("corruption flipped-labels needs at least two classes")
        shift = rng.integers(1, ranges.classes, size=clean.y.shape)
        wrong = np.where(np.isin(clean.y, (IGNORED, NO_LABEL)), clean.y, (clean.y + shift) % ranges.classes)
        chosen = flipped.reshape(-1, *(1,) * (clean.y.ndim - 1))
        return Examples(x=clean.x, y=np.where(chosen, wrong, clean.y).astype(np.int64))


def _blurred(images: Features, *, sigma: float, edges: Edges) -> Reals:
    """A Gaussian filter over rows and columns, each of which is a product with a matrix."""
    down, across = (_smoothing(size, sigma, edges) for size in images.shape[-2:])
    blurred: Reals = np.matmul(down.T, np.matmul(images, across))
    return blurred


def _smoothing(size: int, sigma: float, edges: Edges) -> Reals:
    """The matrix that smooths a line of pixels; beyond its ends the line repeats, or its last pixel does."""
    reach = round(4 * sigma)
    offsets = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (offsets / sigma) ** 2)
    centres = np.arange(size)[:, None]
    seen = (centres + offsets) % size if edges == "wrap" else (centres + offsets).clip(0, size - 1)
    matrix = np.zeros((size, size))
    np.add.at(matrix, (seen, centres), weights / weights.sum())
    return matrix.astype(np.float32)


def _stretched(images: Reals) -> Reals:
    """Each channel of each image from its own lowest and highest value to 0 and 1."""
    low = images.min(axis=(2, 3), keepdims=True)
    width = images.max(axis=(2, 3), keepdims=True) - low
    stretched: Reals = (images - low) / np.where(width > 0, width, np.float32(1))
    return stretched
