"""What is known of the reference's rows, without any of them: moments by class, and how honest clients compare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import Arrays, DataError
from winnow.learn.client_quality.class_moments import ClassMoments
from winnow.learn.client_quality.evidence import COLUMNS, OUTCOMES, REPRESENTATION
from winnow.learn.client_quality.moment_differences import FeatureScale, Sample
from winnow.learn.client_quality.null_distribution import BlockNull, tabulate
from winnow.learn.client_quality.resamples import GRID, Resamples

BLOCKS = (REPRESENTATION, COLUMNS, OUTCOMES)
LARGEST = 1e9
"""Features beyond, as of a model that diverges, would have fourth moments beyond single precision."""
MOST_FEATURES, MOST_CLASSES, MOST_ROWS = 100_000, 1_000, 2**53


@dataclass(frozen=True, kw_only=True, eq=False)
class ReferenceSummary:
    """The reference under one version of the model: what clients are compared with."""

    rows: int
    distinct_rows: int | None
    """How many rows differ from one another; None where nobody counted."""
    moments: Mapping[str, ClassMoments]
    """By block, of all its rows."""
    fourth: Mapping[str, NDArray[np.float32]]
    """By block, fourth central moments [C, f]: how heavy the tails are."""
    nulls: Mapping[str, BlockNull]
    """By block."""

    @classmethod
    def make(
        cls,
        features: Mapping[str, NDArray[np.floating]],
        classes: NDArray[np.integer],
        class_count: int,
        rng: np.random.Generator,
        *,
        distinct_rows: int | None = None,
    ) -> "ReferenceSummary":
        """From the reference's rows: for each block, features [n, f]; and the class of each row."""
        labels = np.asarray(classes, np.int64)
        counts = np.bincount(labels, minlength=class_count)
        resamples = Resamples.draw(labels, class_count, rng)
        moments, fourth, nulls = {}, {}, {}
        for block, values in features.items():
            x = np.clip(np.asarray(values, np.float64), -LARGEST, LARGEST)
            mean = _class_means(x, labels, counts)
            square = (x - mean[labels]) ** 2
            variance = _class_means(square, labels, counts)
            moments[block] = ClassMoments(
                counts=counts, mean=mean.astype(np.float32), variance=variance.astype(np.float32)
            )
            fourth[block] = _class_means(square**2, labels, counts).astype(np.float32)
            scale = FeatureScale.of(x, square)
            nulls[block] = tabulate(x, resamples, class_count, scale=scale, block=block)
        return cls(rows=len(labels), distinct_rows=distinct_rows, moments=moments, fourth=fourth, nulls=nulls)

    @classmethod
    def merged(cls, summaries: Sequence["ReferenceSummary"]) -> "ReferenceSummary":
        """Of several holders of reference rows. Null distributions are averaged by rows: each was drawn against fewer
        reference rows than there are together, and so is rather too wide.
        """
        first = summaries[0]
        if len(summaries) == 1:
            return first
        share = np.array([each.rows for each in summaries]) / sum(each.rows for each in summaries)
        distinct = [each.distinct_rows for each in summaries]
        return cls(
            rows=sum(each.rows for each in summaries),
            distinct_rows=None if None in distinct else sum(each or 0 for each in distinct),
            moments={
                block: ClassMoments.pooled([each.moments[block] for each in summaries]) for block in first.moments
            },
            fourth={block: _pooled_fourth(summaries, block) for block in first.moments},
            nulls={block: _averaged([each.nulls[block] for each in summaries], share) for block in first.nulls},
        )

    def arrays(self) -> Arrays:
        """Everything as named arrays."""
        named: dict[str, NDArray[np.generic]] = {
            "rows": np.array([self.rows, -1 if self.distinct_rows is None else self.distinct_rows], np.int64)
        }
        for block, moments in self.moments.items():
            null = self.nulls[block]
            named |= {f"{block}.{name}": array for name, array in moments.arrays().items()}
            named |= {
                f"{block}.fourth": self.fourth[block],
                f"{block}.scale": null.scale.variance,
                f"{block}.kurtosis": null.scale.kurtosis,
                f"{block}.by_class": null.by_class,
                f"{block}.blind": null.blind,
            }
        return named

    @classmethod
    def of(cls, arrays: Arrays) -> "ReferenceSummary":
        """From named arrays of whatever origin."""
        blocks = [block for block in BLOCKS if f"{block}.counts" in arrays]
        _require(
            set(arrays) == {"rows", *(f"{block}.{part}" for block in blocks for part in PARTS)}, "unexpected parts"
        )
        rows = _checked(arrays, "rows", np.int64, (2,))
        _require(bool(blocks), "no blocks")
        _require(0 < rows[0] < MOST_ROWS and -1 <= rows[1] <= rows[0], "impossible numbers of rows")
        moments, fourth, nulls = {}, {}, {}
        for block in blocks:
            moments[block], fourth[block], nulls[block] = _block(arrays, block)
            _require(int(moments[block].counts.sum()) <= rows[0], "more rows by class than in all")
            _require(len(moments[block].counts) == len(moments[blocks[0]].counts), "blocks of different classes")
        distinct = None if rows[1] < 0 else int(rows[1])
        return cls(rows=int(rows[0]), distinct_rows=distinct, moments=moments, fourth=fourth, nulls=nulls)


PARTS = ("counts", "mean", "variance", "fourth", "scale", "kurtosis", "by_class", "blind")


def sample(moments: ClassMoments) -> Sample:
    """By class, in double precision."""
    return Sample(moments.counts.astype(float), moments.mean.astype(float), moments.variance.astype(float))


def _block(arrays: Arrays, block: str) -> tuple[ClassMoments, NDArray[np.float32], BlockNull]:
    shape = np.shape(arrays[f"{block}.mean"])
    _require(len(shape) == 2 and 0 < shape[0] <= MOST_CLASSES and 0 < shape[1] <= MOST_FEATURES, "a strange shape")
    classes, features = shape

    def part(name: str, dtype: type, expected: tuple[int, ...]) -> NDArray[Any]:
        return _checked(arrays, f"{block}.{name}", dtype, expected)

    moments = ClassMoments(
        counts=part("counts", np.int64, (classes,)),
        mean=part("mean", np.float32, shape),
        variance=part("variance", np.float32, shape),
    )
    null = BlockNull(
        scale=FeatureScale(
            variance=part("scale", np.float64, (features,)), kurtosis=part("kurtosis", np.float64, (features,))
        ),
        by_class=part("by_class", np.float64, (classes, len(GRID), 2, 3)),
        blind=part("blind", np.float64, (classes + 1, len(GRID), 2, 3)),
    )
    _require(bool((moments.counts >= 0).all() and (moments.variance >= 0).all()), "negative counts or variances")
    _require(bool((null.scale.variance > 0).all() and (null.scale.kurtosis > 0).all()), "features without a scale")
    _require(bool((null.by_class[..., 1] >= 0).all() and (null.blind[..., 1] >= 0).all()), "negative variances")
    fourth = part("fourth", np.float32, shape)
    _require(bool((fourth >= 0).all()), "negative fourth moments")
    return moments, fourth, null


def _checked(arrays: Arrays, name: str, dtype: type, shape: tuple[int, ...]) -> NDArray[Any]:
    array = np.asarray(arrays[name])
    _require(array.dtype == dtype and array.shape == shape, f"{name} of an unexpected shape or type")
    _require(bool(np.isfinite(array).all()), f"{name} with numbers that are not finite")
    return array


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise DataError(f"the reference summary has {what}; get it again from the federation")


def _class_means(
    values: NDArray[np.float64], classes: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray[np.float64]:
    sums = np.zeros((len(counts), values.shape[1]))
    np.add.at(sums, classes, values)
    return sums / np.maximum(counts, 1)[:, None]


def _pooled_fourth(summaries: Sequence[ReferenceSummary], block: str) -> NDArray[np.float32]:
    """About the common mean μ: E(x - μ)⁴ = m₄ + 6 m₂ d² + d⁴ but for skewness, with d = m - μ."""
    parts = [each.moments[block] for each in summaries]
    counts = np.stack([part.counts for part in parts])
    shares = (counts / np.maximum(counts.sum(axis=0), 1))[..., None]
    mean = np.stack([part.mean for part in parts]).astype(float)
    variance = np.stack([part.variance for part in parts]).astype(float)
    fourth = np.stack([each.fourth[block] for each in summaries]).astype(float)
    apart = mean - (shares * mean).sum(axis=0)
    return np.asarray((shares * (fourth + 6 * variance * apart**2 + apart**4)).sum(axis=0), np.float32)


def _averaged(nulls: Sequence[BlockNull], share: NDArray[np.float64]) -> BlockNull:
    """A class's distribution is that of the holders that have the class: where one has hardly any, it has none."""
    classes = np.stack([null.known for null in nulls])
    everything = classes.any(axis=1, keepdims=True)

    def mean(arrays: Sequence[NDArray[np.float64]], known: NDArray[np.bool_]) -> NDArray[np.float64]:
        weights = share[:, None] * known
        weights = weights / np.maximum(weights.sum(axis=0), np.finfo(np.float64).tiny)
        return np.asarray(np.einsum("hc,hc...->c...", weights, np.stack(arrays)))

    return BlockNull(
        scale=FeatureScale(
            variance=np.tensordot(share, [null.scale.variance for null in nulls], 1),
            kurtosis=np.tensordot(share, [null.scale.kurtosis for null in nulls], 1),
        ),
        by_class=mean([null.by_class for null in nulls], classes),
        blind=mean([null.blind for null in nulls], np.concatenate([classes, everything], axis=1)),
    )
