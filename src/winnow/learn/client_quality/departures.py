"""How far one client's evidence departs from the reference, statistic by statistic, and how far chance would go."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.learn.client_quality.class_moments import ClassMoments
from winnow.learn.client_quality.comparison import Reals, Sample, differences, precision
from winnow.learn.client_quality.evidence import COLUMNS, OUTCOMES, REPRESENTATION, ClientEvidence
from winnow.learn.client_quality.mixture import best_weights, mixed
from winnow.learn.client_quality.null_distribution import KNOWN_ROWS
from winnow.learn.client_quality.reference_summary import ReferenceSummary, sample, statistics_of

STATISTICS = (
    "representation by class",
    "representation by class, largest",
    "columns by class",
    "columns by class, largest",
    "predictions",
    "loss",
    "representation",
    "representation, largest",
    "columns",
    "columns, largest",
    "copies",
)
EFFECT, DEVIATION, SKEWNESS, DETECTABLE = range(4)
BY_CLASS = {REPRESENTATION: 0, COLUMNS: 2, OUTCOMES: 4}
BLIND = {REPRESENTATION: 6, COLUMNS: 8}
LOSS = 5
COPIES = 10
TYPICAL_HARM = 0.4
"""A client for whom this share of random labels would go unnoticed has too few rows for a verdict."""
COPIES_ALLOWED, COPIES_DEVIATION = 0.1, 0.05


@dataclass(frozen=True, eq=False)
class Departures:
    """One client's, in one assessment. NaN where there is no evidence."""

    array: NDArray[np.float64]
    """[S, 4], for each of STATISTICS: the effect (0 is expected of an honest client), the standard deviation and the
    skewness that it would have by chance, and the effect that a typical harm would have"""

    @classmethod
    def of(cls, array: NDArray[np.float64]) -> "Departures":
        return cls(np.asarray(array, np.float64).reshape(len(STATISTICS), 4))


def measure(reference: ReferenceSummary, evidence: ClientEvidence) -> Departures:
    """Compare one client with the reference."""
    found = np.full((len(STATISTICS), 4), np.nan)
    independent = _independent_share(reference, evidence)
    for block, moments in evidence.blocks.items():
        _check_fits(reference, block, moments)
        own, known = sample(moments), _known(reference, block, moments)
        own = Sample(np.maximum(own.rows * independent, 1.0), own.mean, own.variance)
        if not len(known):
            continue
        place = BY_CLASS[block]
        found[place : place + 2] = _by_class(reference, block, _at(own, known), known)
        if block in BLIND:
            place = BLIND[block]
            found[place : place + 2] = _blind(reference, block, _at(own, known), known)
    if evidence.distinct_rows is not None and reference.distinct_rows is not None:
        found[COPIES] = _copies(reference, evidence)
    return Departures(found)


def _by_class(reference: ReferenceSummary, block: str, own: Sample, known: NDArray[np.int64]) -> Reals:
    """Each class against the reference's of that class; sums over classes, whose central moments add up."""
    null, against = reference.nulls[block], _at(sample(reference.moments[block]), known)
    rows = np.zeros(len(reference.moments[block].counts))
    rows[known] = own.rows
    expected = null.at(rows)[known]
    statistics = statistics_of(block)
    a = precision(own, against)
    values = statistics(*differences(own, against, null.scale))
    harmed = _randomly_labelled(sample(reference.moments[block]), own.rows, known, reference.nulls[block].by_class)
    harm = statistics(*differences(Sample(own.rows, harmed.mean, harmed.variance), against, null.scale))
    weights, per_effect = _weights(block, a)
    return _summed(values - expected[..., 0], expected, weights, per_effect, harm)


def _weights(block: str, a: Reals) -> tuple[Reals, Reals]:
    """What classes count for in the sums [C, 2], and what the sums are divided by to be effects [2].

    A mean of squares grows with a, the largest with √a. Losses have a sign, and are summed as their means would be.
    """
    one, root = np.ones_like(a), np.sqrt(a)
    if block == OUTCOMES:
        return np.stack([one, root], axis=1), np.array([a.sum(), a.sum()])
    return np.stack([one, one], axis=1), np.array([a.sum(), root.sum()])


def _summed(excess: Reals, expected: Reals, weights: Reals, per_effect: Reals, harm: Reals) -> Reals:
    """[2, 4]"""
    variance = (weights**2 * expected[..., 1]).sum(axis=0)
    third = (weights**3 * expected[..., 2]).sum(axis=0)
    deviation = np.sqrt(np.maximum(variance, 1e-12))
    effect, harmful = (weights * excess).sum(axis=0), (weights * harm).sum(axis=0)
    return np.stack([effect / per_effect, deviation / per_effect, third / deviation**3, harmful / per_effect], axis=1)


def _randomly_labelled(classes: Sample, rows: Reals, known: NDArray[np.int64], by_class: Reals) -> Sample:
    """What the client's classes would be like if a share of its labels were drawn at random.

    Which classes such rows would really be of is unknown where labels may be wrong: half as its labels say, half any.
    """
    told, any_class = np.zeros(len(classes.rows)), by_class[..., 1].any(axis=(1, 2)).astype(float)
    told[known] = rows
    mix = (told / told.sum() + any_class / any_class.sum()) / 2
    weights = TYPICAL_HARM * mix + (1 - TYPICAL_HARM) * np.eye(len(classes.rows))[known]
    return mixed(Sample(classes.rows, classes.mean, classes.variance), weights)


def _blind(reference: ReferenceSummary, block: str, own: Sample, told: NDArray[np.int64]) -> Reals:
    """All rows, without labels, against the best mixture of the reference's classes."""
    null, moments = reference.nulls[block], reference.moments[block]
    known = np.flatnonzero(moments.counts >= KNOWN_ROWS)
    classes = _at(sample(moments), known)
    classes = Sample(classes.rows[None], classes.mean[None], classes.variance[None])
    total, labelled, mix = own.rows.sum(), np.zeros(len(moments.counts)), np.zeros(len(moments.counts))
    labelled[told] = own.rows / total
    pooled = mixed(own, labelled[told])
    pooled = Sample(np.array([total]), pooled.mean[None], pooled.variance[None])
    weights = best_weights(pooled, classes, null.scale, labelled[known])
    mix[known] = weights[0]
    against = mixed(classes, weights)
    values = statistics_of(block)(*differences(pooled, against, null.scale))
    per_class, per_effect = _weights(block, precision(pooled, against))
    expected = null.blind_at(total, mix)[None]
    return _summed(values - expected[..., 0], expected, per_class, per_effect, np.full((1, 2), np.nan))


def _copies(reference: ReferenceSummary, evidence: ClientEvidence) -> Reals:
    assert evidence.distinct_rows is not None
    repeated = 1 - evidence.distinct_rows / max(evidence.rows, 1)
    effect = repeated - _repeated_by_chance(reference, evidence.rows) - COPIES_ALLOWED
    return np.array([effect, COPIES_DEVIATION, 0.0, np.nan])


def _repeated_by_chance(reference: ReferenceSummary, rows: int) -> float:
    """The share of rows that repeat others; pairs grow with the square of the rows."""
    assert reference.distinct_rows is not None
    return min(1.0, (1 - reference.distinct_rows / reference.rows) * rows / reference.rows)


def _independent_share(reference: ReferenceSummary, evidence: ClientEvidence) -> float:
    """Copies of a row are no more evidence than the row."""
    if evidence.distinct_rows is None or reference.distinct_rows is None:
        return 1.0
    expected = 1 - _repeated_by_chance(reference, evidence.rows)
    return min(1.0, evidence.distinct_rows / max(evidence.rows * expected, 1.0))


def _known(reference: ReferenceSummary, block: str, moments: ClassMoments) -> NDArray[np.int64]:
    return np.flatnonzero((moments.counts > 0) & (reference.moments[block].counts >= KNOWN_ROWS))


def _at(classes: Sample, places: NDArray[np.int64]) -> Sample:
    return Sample(classes.rows[places], classes.mean[places], classes.variance[places])


def _check_fits(reference: ReferenceSummary, block: str, moments: ClassMoments) -> None:
    expected = reference.moments.get(block)
    if expected is None or expected.mean.shape != moments.mean.shape:
        raise DataError(
            f"evidence {block!r} does not fit the reference's; both must come from one model and one data set"
        )
