"""How far clients' evidence departs from the reference, statistic by statistic, and how far chance would go."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.learn.client_quality.class_moments import ClassMoments
from winnow.learn.client_quality.copied_rows import expected_distinct, independent_share
from winnow.learn.client_quality.evidence import COLUMNS, OUTCOMES, REPRESENTATION, ClientEvidence
from winnow.learn.client_quality.fit_class_mixture import best_weights, mixed
from winnow.learn.client_quality.moment_differences import (
    CAP,
    Reals,
    Sample,
    class_statistics,
    precision,
    row_statistics,
    towards_others,
)
from winnow.learn.client_quality.reference_summary import BLOCKS, ReferenceSummary
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
TYPICAL_HARM = 0.5
"""The share of random labels that should not go unnoticed."""
COPIES_ALLOWED, COPIES_DEVIATION = 0.1, 0.05
NUMBERS_TOGETHER = 1 << 20
"""Clients are compared together as long as they tell no more means: what is made of them stays small."""


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
    return measure_all(reference, [evidence])[0]


def measure_all(reference: ReferenceSummary, clients: Sequence[ClientEvidence]) -> list[Departures]:
    """Compare clients with the reference, each for itself."""
    found = np.full((len(clients), len(STATISTICS), 4), np.nan)
    for block in BLOCKS:
        who = [place for place, evidence in enumerate(clients) if block in evidence.blocks]
        for place in who:
            _check_fits(reference, block, clients[place].blocks[block])
        if not who:
            continue
        together = max(1, NUMBERS_TOGETHER // reference.moments[block].mean.size)
        for first in range(0, len(who), together):
            some = who[first : first + together]
            _measure_block(reference, block, [clients[place] for place in some], found, some)
    for place, evidence in enumerate(clients):
        if evidence.distinct_rows is not None and reference.distinct_rows:
            expected = expected_distinct(evidence.rows, reference.rows, reference.distinct_rows)
            found[place, COPIES] = _copies(evidence, expected, evidence.distinct_rows)
    return [Departures(array) for array in found]


def _measure_block(
    reference: ReferenceSummary, block: str, clients: Sequence[ClientEvidence], found: Reals, places: list[int]
) -> None:
    """Fill in what a block's statistics say of K clients: of [K, C, f] moments, those of classes that are `known`."""
    told = [evidence.blocks[block] for evidence in clients]
    counts = np.stack([each.counts for each in told])
    known_rows, known_distinct = reference.rows, reference.distinct_rows
    independent = np.array(
        [[independent_share(each.rows, each.distinct_rows, known_rows, known_distinct)] for each in clients]
    )
    own = Sample(
        np.maximum(counts * independent, 1.0),
        np.stack([each.mean for each in told]).astype(float),
        np.stack([each.variance for each in told]).astype(float),
    )
    drawn = reference.nulls[block].known  # holders of few rows each have some only together
    known = (counts > 0) & _comparable(reference, block) & drawn
    some = known.any(axis=1)
    if not some.any():
        return
    own, known, places = own[some], known[some], np.array(places)[some].tolist()
    squares, towards = _by_class(reference, block, own, known)
    found[places, TOWARDS[block]] = towards
    if block in BY_CLASS:
        found[places, BY_CLASS[block]] = squares
    if block in BLIND:
        found[places, BLIND[block]], found[places, BLIND[block] + 1] = _blind(reference, block, own, known)


def _by_class(reference: ReferenceSummary, block: str, own: Sample, known: NDArray[np.bool_]) -> tuple[Reals, Reals]:
    """Each class against the reference's of that class: two statistics, [K, 4] each."""
    null, classes = reference.nulls[block], _classes(reference, block)
    comparable = _comparable(reference, block)
    towards = np.zeros_like(classes.mean)
    towards[comparable] = towards_others(classes[comparable], null.scale)
    expected = null.at(own.rows)
    harmed = _randomly_labelled(classes, np.where(known, own.rows, 0.0), null.known)
    values, harm = (
        class_statistics(each, classes, null.scale, towards, outcomes=block == OUTCOMES)
        for each in (own, Sample(own.rows, harmed.mean, harmed.variance))
    )
    a = np.where(known, precision(own, classes), 0.0)
    total = a.sum(axis=1)
    excess = values - expected[..., 0]
    squares = _summed(excess[..., 0], expected[..., 0, :], known.astype(float), total, harm[..., 0])
    if block == OUTCOMES:
        return squares, _summed(excess[..., 1], expected[..., 1, :], np.sqrt(a), total, harm[..., 1])
    variance = expected[..., 1, 1]
    weights = np.where(known & (variance > 0), 1 / np.maximum(variance, 1e-12), 0.0)
    return squares, _summed(excess[..., 1], expected[..., 1, :], weights, weights.sum(axis=1), harm[..., 1])


def _summed(excess: Reals, expected: Reals, weights: Reals, divisor: Reals, harm: Reals) -> Reals:
    """Effects [K, 4]: weighted sums over classes, whose central moments [K, C, 3] add up, divided by what makes them
    effects; NaN where no class has a weight.

    A mean of squares grows with a, so that it is divided by Σ a. Shares are weighted by the inverse of their variances.
    """
    deviation = np.sqrt(np.maximum((weights**2 * expected[..., 1]).sum(axis=1), 1e-18))
    skewness = (weights**3 * expected[..., 2]).sum(axis=1) / deviation**3
    divisor = np.where(divisor > 0, divisor, np.nan)
    effect, harmed = ((weights * each).sum(axis=1) / divisor for each in (excess, harm))
    return np.stack([effect, deviation / divisor, np.where(np.isnan(divisor), np.nan, skewness), harmed], axis=1)


def _randomly_labelled(classes: Sample, rows: Reals, drawn: NDArray[np.bool_]) -> Sample:
    """What clients' classes [K, C, f] would be like if a share of their labels were drawn at random.

    Which classes such rows would really be of is unknown where labels may be wrong: half as its labels say, half any.
    """
    any_class = drawn.astype(float)
    mix = (rows / rows.sum(axis=1, keepdims=True) + any_class / any_class.sum()) / 2
    return mixed(classes, TYPICAL_HARM * mix[:, None] + (1 - TYPICAL_HARM) * np.eye(len(any_class)))


def _blind(reference: ReferenceSummary, block: str, own: Sample, known: NDArray[np.bool_]) -> tuple[Reals, Reals]:
    """All rows, without labels, against the best mixture of the reference's classes: two statistics, [K, 4] each.

    Typical harm is one feature, shifted by one standard deviation.
    """
    null, comparable = reference.nulls[block], _comparable(reference, block)
    classes, rows = _classes(reference, block)[comparable], np.where(known, own.rows, 0.0)
    total = rows.sum(axis=1)
    labelled = rows / total[:, None]
    pooled = mixed(own, labelled[:, None])[:, 0]
    pooled = Sample(total, pooled.mean, pooled.variance)
    mix = np.zeros_like(labelled)
    mix[:, comparable] = best_weights(pooled, classes, null.scale, labelled[:, comparable])
    against = mixed(classes, mix[:, comparable])
    values = row_statistics(pooled, against, null.scale, columns=block == COLUMNS)
    expected, a = null.blind_at(total, mix), precision(pooled, against)
    ones, features = np.ones((len(total), 1)), pooled.mean.shape[1]
    harm = np.minimum(a, CAP**2) / (2 * features if block == COLUMNS else features), np.sqrt(a) - expected[:, 1, 0]
    mean, largest = (
        _summed(values[:, [i]] - expected[:, [i], 0], expected[:, [i]], ones, divisor, harm[i][:, None])
        for i, divisor in enumerate((a, np.sqrt(a)))
    )
    return mean, largest


def _copies(evidence: ClientEvidence, expected: float, distinct: int) -> Reals:
    """The share of rows that repeat others, beyond what is expected and allowed."""
    missing = (expected - distinct) / max(evidence.rows, 1)
    return np.array([missing - COPIES_ALLOWED, COPIES_DEVIATION, 0.0, np.nan])


def _comparable(reference: ReferenceSummary, block: str) -> NDArray[np.bool_]:
    return reference.moments[block].counts >= KNOWN_ROWS


def _classes(reference: ReferenceSummary, block: str) -> Sample:
    """The reference's, in double precision."""
    moments = reference.moments[block]
    return Sample(np.maximum(moments.counts, 1.0), moments.mean.astype(float), moments.variance.astype(float))


def _check_fits(reference: ReferenceSummary, block: str, moments: ClassMoments) -> None:
    expected = reference.moments.get(block)
    if expected is None or expected.mean.shape != moments.mean.shape:
        raise DataError(
            f"evidence {block!r} does not fit the reference's; both must come from one model and one data set"
        )
