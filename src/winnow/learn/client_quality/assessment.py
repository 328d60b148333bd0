"""From departures to a score, a verdict and its reason for every client.

The effects of a client's statistics are compared with two things: with what chance does to as many rows of its classes,
and with the other clients, honest ones of which may be unlike the reference too (a random-effects model with the
clients' median effect ν and a spread τ beyond chance). With q the effect that chance exceeds in a share α / S of the
cases, S being the number of statistics,

    score = max over statistics of (effect - ν) / √(q² + (z_α/S τ)²)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from winnow.learn.client_quality.departures import COPIES, DETECTABLE, DEVIATION, EFFECT, SKEWNESS, STATISTICS, Departures

Verdict = Literal["fine", "different", "suspect", "harmful", "cannot tell"]

FEWEST_CLIENTS = 5
"""With fewer, the others say too little about each other: the reference alone decides."""


@dataclass(frozen=True, kw_only=True)
class ClientAssessment:
    client: int
    score: float
    verdict: Verdict
    evidence: str
    kinds: tuple[str, ...]
    scores: Mapping[str, float]


def score_table(history: Sequence[Sequence[Departures]], false_alarms: float):
    """[K, S] scores and null scores, [K] power."""
    table = np.stack([_combined(each) for each in history])
    present = np.isfinite(table[..., EFFECT])
    level = false_alarms / max(int(present.any(axis=0).sum()), 1)
    chance = table[..., DEVIATION] * _quantile(level, table[..., SKEWNESS])
    centre, spread = np.zeros(len(STATISTICS)), np.zeros(len(STATISTICS))
    for s in range(len(STATISTICS)):
        use = present[:, s]
        if use.sum() >= FEWEST_CLIENTS:
            centre[s], spread[s] = _others(table[use, s, EFFECT], table[use, s, DEVIATION])
    bound = np.sqrt(chance**2 + (stats.norm.isf(level) * spread) ** 2)
    scores = np.where(present, (table[..., EFFECT] - centre) / bound, -np.inf)
    unlike = np.where(present, table[..., EFFECT] / chance, -np.inf)
    power = np.nanmax(np.where(present, table[..., DETECTABLE] / bound, np.nan), axis=1, initial=0)
    return scores, unlike, power


def _combined(assessments: Sequence[Departures]) -> NDArray[np.float64]:
    """Later models count more: each twice as much as the one before."""
    if not assessments:
        return np.full((len(STATISTICS), 4), np.nan)
    weights = 0.5 ** np.arange(len(assessments))[::-1]
    return np.tensordot(weights / weights.sum(), np.stack([each.array for each in assessments]), 1)


def _quantile(level: float, skewness):
    """Of standardised Pearson type III distributions, which a sum of squares nearly has."""
    skew = np.clip(np.nan_to_num(skewness), 0.0, 4.0)
    return stats.pearson3.isf(level, skew)


def _others(effects, deviations) -> tuple[float, float]:
    """ν and τ. Bad clients lie above, so the spread is that of the lower half."""
    centre = float(np.median(effects))
    below = effects[effects <= centre]
    spread = 1.4826 * float(np.median(centre - below))
    return centre, float(np.sqrt(max(spread**2 - np.median(deviations) ** 2, 0.0)))
