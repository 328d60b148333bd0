"""How far one client's evidence departs from the reference, statistic by statistic, and how far chance would go."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.learn.client_quality.class_moments import ClassMoments
from winnow.learn.client_quality.copied_rows import expected_distinct, independent_share
from winnow.learn.client_quality.evidence import COLUMNS, OUTCOMES, REPRESENTATION, ClientEvidence
from winnow.learn.client_quality.mixture import best_weights, mixed
from winnow.learn.client_quality.moment_differences import (
    Reals,
    Sample,
    class_statistics,
    precision,
    row_statistics,
    towards_others,
)
from winnow.learn.client_quality.reference_summary import ReferenceSummary, sample
from winnow.learn.client_quality.resamples import KNOWN_ROWS

STATISTICS = (
    "representation by class",
    "representation towards other classes",
    "columns towards other classes",
    "loss",
    "representation",
    "representation, largest",
    "columns",
    "columns, largest",
    "copies",
)
BY_CLASS, TOWARDS, BLIND = (
    {REPRESENTATION: 0},
    {REPRESENTATION: 1, COLUMNS: 2, OUTCOMES: 3},
    {REPRESENTATION: 4, COLUMNS: 6},
)
"""Where blocks have their statistics. Columns by class, and predictions, say little that these do not say better."""
LOSS, COPIES = 3, 8
EFFECT, DEVIATION, SKEWNESS, DETECTABLE = range(4)
TYPICAL_HARM = 0.7
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


def measure_departures(reference: ReferenceSummary, evidence: ClientEvidence) -> Departures:
    """Compare one client with the reference."""
    found = np.full((len(STATISTICS), 4), np.nan)
    known_rows, known_distinct = reference.rows, reference.distinct_rows
    independent = independent_share(evidence.rows, evidence.distinct_rows, known_rows, known_distinct)
    for block, moments in evidence.blocks.items():
        _check_fits(reference, block, moments)
        own, known = sample(moments), _known(reference, block, moments)
        own = Sample(np.maximum(own.rows * independent, 1.0), own.mean, own.variance)
        if not len(known):
            continue
        squares, found[TOWARDS[block]] = _by_class(reference, block, _at(own, known), known)
        if block in BY_CLASS:
            found[BY_CLASS[block]] = squares
        if block in BLIND:
            place = BLIND[block]
            found[place : place + 2] = _blind(reference, block, _at(own, known), known)
    if evidence.distinct_rows is not None and known_distinct:
        expected = expected_distinct(evidence.rows, known_rows, known_distinct)
        found[COPIES] = _copies(evidence, expected, evidence.distinct_rows)
    return Departures(found)


def _by_class(reference: ReferenceSummary, block: str, own: Sample, known: NDArray[np.int64]) -> Reals:
    """Each class against the reference's of that class, [2, 4]."""
    null, classes = reference.nulls[block], sample(reference.moments[block])
    against, comparable = _at(classes, known), np.flatnonzero(classes.rows >= KNOWN_ROWS)
    towards = towards_others(_at(classes, comparable), null.scale)[np.isin(comparable, known)]
    rows = np.zeros(len(classes.rows))
    rows[known] = own.rows
    expected = null.at(rows)[known]
    harmed = _randomly_labelled(classes, own.rows, known, null.known)
    values, harm = (
        class_statistics(each, against, null.scale, towards, outcomes=block == OUTCOMES)
        for each in (own, Sample(own.rows, harmed.mean, harmed.variance))
    )
    a = precision(own, against)
    squares = _summed(values[:, 0] - expected[:, 0, 0], expected[:, 0], np.ones_like(a), a.sum(), harm[:, 0])
    if block == OUTCOMES:
        return np.stack(
            [squares, _summed(values[:, 1] - expected[:, 1, 0], expected[:, 1], np.sqrt(a), a.sum(), harm[:, 1])]
        )
    weights = np.where(expected[:, 1, 1] > 0, 1 / np.maximum(expected[:, 1, 1], 1e-12), 0.0)
    if not weights.any():
        return np.stack([squares, np.full(4, np.nan)])
    return np.stack(
        [squares, _summed(values[:, 1] - expected[:, 1, 0], expected[:, 1], weights, weights.sum(), harm[:, 1])]
    )


def _summed(excess: Reals, expected: Reals, weights: Reals, divisor: float, harm: Reals) -> Reals:
    """An effect: a weighted sum over classes, whose central moments [C, 3] add up, divided by what makes it an effect.

    A mean of squares grows with a, so that it is divided by Σ a. Shares are weighted by the inverse of their variances.
    """
    deviation = np.sqrt(max(float((weights**2 * expected[:, 1]).sum()), 1e-18))
    skewness = (weights**3 * expected[:, 2]).sum() / deviation**3
    return np.array(
        [(weights * excess).sum() / divisor, deviation / divisor, skewness, (weights * harm).sum() / divisor]
    )


def _randomly_labelled(classes: Sample, rows: Reals, known: NDArray[np.int64], drawn: NDArray[np.bool_]) -> Sample:
    """What the client's classes would be like if a share of its labels were drawn at random.

    Which classes such rows would really be of is unknown where labels may be wrong: half as its labels say, half any.
    """
    told, any_class = np.zeros(len(classes.rows)), drawn.astype(float)
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
    values = row_statistics(pooled, against, null.scale, columns=block == COLUMNS)[0]
    expected = null.blind_at(total, mix)
    a = float(precision(pooled, against)[0])
    return np.stack(
        [
            _summed(values[i] - expected[i, :1], expected[None, i], np.ones(1), divisor, np.full(1, np.nan))
            for i, divisor in enumerate((a, np.sqrt(a)))
        ]
    )


def _copies(evidence: ClientEvidence, expected: float, distinct: int) -> Reals:
    """The share of rows that repeat others, beyond what is expected and allowed."""
    missing = (expected - distinct) / max(evidence.rows, 1)
    return np.array([missing - COPIES_ALLOWED, COPIES_DEVIATION, 0.0, np.nan])


def _known(reference: ReferenceSummary, block: str, moments: ClassMoments) -> NDArray[np.int64]:
    """The classes that both have, and that were drawn from: holders of few rows each have them only together."""
    drawn = reference.nulls[block].known
    return np.flatnonzero((moments.counts > 0) & drawn & (reference.moments[block].counts >= KNOWN_ROWS))


def _at(classes: Sample, places: NDArray[np.int64]) -> Sample:
    return Sample(classes.rows[places], classes.mean[places], classes.variance[places])


def _check_fits(reference: ReferenceSummary, block: str, moments: ClassMoments) -> None:
    expected = reference.moments.get(block)
    if expected is None or expected.mean.shape != moments.mean.shape:
        raise DataError(
            f"evidence {block!r} does not fit the reference's; both must come from one model and one data set"
        )
