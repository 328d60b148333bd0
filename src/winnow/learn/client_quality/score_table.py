"""How far clients' departures lie above what chance and the other clients allow.

The effects of a client's statistics are compared with two things: with what chance does to as many rows of its classes,
and with the other clients, of which honest ones may be unlike the reference too (a random-effects model: the clients'
median effect ν, and a spread τ beyond chance). With q the effect that chance exceeds in a share β of the cases,

    score = (effect - ν) / √(q² + (z τ)²),    z the normal quantile of 1 - β

The statistics that look for wrong labels estimate one thing, so that the mean of their scores is one test. It may have
half of the false alarms, β = α / 2; the other tests share the other half.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.learn.client_quality.departures import (
    DETECTABLE,
    DEVIATION,
    EFFECT,
    LOSS,
    SKEWNESS,
    STATISTICS,
    TOWARDS,
    Departures,
)
from winnow.learn.client_quality.update_evidence import MAD_TO_SD

Table: TypeAlias = NDArray[np.float64]

MIN_CLIENTS = 5
"""With fewer, clients say too little about each other: the reference alone decides."""
LABELS = sorted(TOWARDS.values())
"""The statistics that look for wrong labels."""
CORRELATION = 0.8
"""Of these with each other, at most about."""
MARGIN = 1.1
"""Null distributions are known from some draws out of a finite reference, and not better than that."""
LEAST_SKEWNESS = 1e-3
"""With less, the distribution is normal for all that matters."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreTable:
    """Of K clients, by statistic: [K, S], label statistics together; -∞ where there is no evidence."""

    among_clients: Table
    """By how much it exceeds the typical client's, in units of what chance and the spread of clients allow."""
    beyond_null: Table
    """The same, in units of what chance alone allows."""
    power: Table
    """[K], the score that a typical harm would have"""
    loss: Table
    """[K], by how many standard deviations the loss is above what it should be"""


def score_table(history: Sequence[Sequence[Departures]], false_alarms: float) -> ScoreTable:
    """The scores of all clients, by statistic."""
    from scipy.special import ndtri  # noqa: PLC0415 - SciPy takes long to import

    table = np.stack([_combined(each) for each in history]) if history else np.empty((0, len(STATISTICS), 4))
    present = np.isfinite(table[..., EFFECT])
    level = _levels(np.asarray(present.any(axis=0)), false_alarms)
    effect, deviation = table[..., EFFECT], table[..., DEVIATION]
    null_bound = deviation * _quantile(level, table[..., SKEWNESS])
    centre, spread = np.zeros(len(STATISTICS)), np.zeros(len(STATISTICS))
    for place in np.flatnonzero(present.sum(axis=0) >= MIN_CLIENTS):
        who = present[:, place]
        centre[place], spread[place] = _centre_and_spread(effect[who, place], deviation[who, place])
    bound = MARGIN * np.sqrt(null_bound**2 + (ndtri(level) * spread) ** 2)
    return ScoreTable(
        among_clients=_tests((effect - centre) / bound),
        beyond_null=_tests((effect - np.maximum(centre, 0)) / null_bound),
        power=_tests(table[..., DETECTABLE] / bound).max(axis=1, initial=0.0),
        loss=np.nan_to_num(effect[:, LOSS] - centre[LOSS]),
    )


def _tests(scores: Table) -> Table:
    """Scores by statistic [K, S], with the mean of all that look for wrong labels in the place of each of these."""
    told = np.isfinite(scores[:, LABELS])
    count = np.maximum(told.sum(axis=1), 1)
    mean = np.where(told, scores[:, LABELS], 0).sum(axis=1) / count / np.sqrt((1 + (count - 1) * CORRELATION) / count)
    tests = np.where(np.isfinite(scores), scores, -np.inf)
    tests[:, LABELS] = np.where(told, mean[:, None], -np.inf)
    return tests


def _levels(tested: NDArray[np.bool_], false_alarms: float) -> Table:
    """The share of false alarms that each statistic may have: half for labels, half for the other tests together."""
    labels, others = tested[LABELS].any(), max(int(np.delete(tested, LABELS).sum()), 1)
    levels = np.full(len(tested), false_alarms / (2 * others if labels else others))
    levels[LABELS] = false_alarms / 2
    return levels


def _combined(assessments: Sequence[Departures]) -> Table:
    """The weighted mean over assessments. Later models count more, each twice as much as the one before; where a
    statistic is missing in one, the others stand for it.
    """
    if not assessments:
        return np.full((len(STATISTICS), 4), np.nan)
    arrays = np.stack([each.array for each in assessments])
    known = np.isfinite(arrays)
    weights = known * 0.5 ** np.arange(len(assessments))[::-1, None, None]
    total = weights.sum(axis=0)
    sums = (weights * np.where(known, arrays, 0.0)).sum(axis=0)
    return np.asarray(np.divide(sums, total, out=np.full_like(sums, np.nan), where=total > 0))


def _quantile(level: Table, skewness: Table) -> Table:
    """What a standardised Pearson type III distribution exceeds with this probability; a sum of squares nearly has one.

    It is that of (G - a) / √a, where G has the gamma distribution of shape a = 4 / skewness².
    """
    from scipy.special import gammainccinv  # noqa: PLC0415 - SciPy takes long to import

    shape = 4 / np.clip(np.nan_to_num(skewness), LEAST_SKEWNESS, 4.0) ** 2
    return np.asarray((gammainccinv(shape, level) - shape) / np.sqrt(shape))


def _centre_and_spread(effects: Table, deviations: Table) -> tuple[float, float]:
    """ν, and τ: how much more clients differ than by chance. Bad ones lie above, so that the lower half tells."""
    centre = float(np.median(effects))
    spread = MAD_TO_SD * float(np.median(centre - effects[effects <= centre]))
    return centre, float(np.sqrt(max(spread**2 - float(np.median(deviations)) ** 2, 0.0)))
