"""Columns that stand in one another's place."""

import numpy as np
from numpy.typing import NDArray

from winnow.learn.client_quality.class_moments import ClassMoments
from winnow.learn.client_quality.label_free_expected_moments import ExpectedMoments, Reals

MAX_CANDIDATES = 64
_BETTER = 0.2
"""In another's place a column must be at least five times nearer to the reference than in its own."""
_NEAR = 0.05
"""The divergence that is left there, besides chance: at most this."""
_SURE = 15.0
"""The logarithm of the likelihood ratio by which a column must be out of place."""


def exchanged_columns(
    client: ClassMoments, expected: ExpectedMoments, candidates: NDArray[np.int64], shift: Reals, width: Reals
) -> list[list[int]]:
    """Groups of features that fit the reference far better in one another's places, each in its cycle's order.

    Values may have been exchanged raw or after scaling (raw = feature × width + shift); by the mean over classes of the
    divergence KL(client's normal ‖ reference's normal), each feature is compared with the reference's of every other,
    and the best assignment is taken.
    """
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - slow to import

    chosen = candidates[:MAX_CANDIDATES]
    if len(chosen) < 2:
        return []
    scaled = _divergences(client, expected, chosen, np.zeros(len(chosen)), np.ones(len(chosen)))
    raw = _divergences(client, expected, chosen, shift[chosen], width[chosen])
    cost = np.minimum(scaled, raw)
    own = np.diag(cost)
    _, place = linear_sum_assignment(cost)
    rows, there = float(expected.counts.sum()), cost[np.arange(len(chosen)), place]
    kurtosis = expected.fourth[:, chosen[place]] / np.maximum(expected.variance[:, chosen[place]], 1e-300) ** 2
    noise = (1 + kurtosis).sum(0) / rows
    fits = (there <= _BETTER * own) & (there <= _NEAR + noise) & (rows * own >= _SURE)
    return [[int(chosen[each]) for each in cycle] for cycle in _cycles(place) if len(cycle) > 1 and fits[cycle].all()]


def _divergences(
    client: ClassMoments, expected: ExpectedMoments, chosen: NDArray[np.int64], shift: Reals, width: Reals
) -> Reals:
    """[client's feature, reference's feature]"""
    told = expected.told
    mean = client.mean[told][:, chosen].astype(np.float64) * width + shift
    variance = client.variance[told][:, chosen].astype(np.float64) * width**2
    other_mean, other = expected.mean[:, chosen] * width + shift, expected.variance[:, chosen] * width**2
    share = (expected.counts / expected.counts.sum())[:, None, None]
    ratio = np.maximum(variance[:, :, None] / other[:, None, :], 1e-6)
    distance = (mean[:, :, None] - other_mean[:, None, :]) ** 2 / other[:, None, :]
    result: Reals = (share * 0.5 * (distance + ratio - 1 - np.log(ratio))).sum(0)
    return result


def _cycles(place: NDArray[np.int64]) -> list[list[int]]:
    cycles, seen = [], set[int]()
    for start in range(len(place)):
        cycle = []
        while start not in seen:
            seen.add(start)
            cycle.append(start)
            start = int(place[start])  # noqa: PLW2901 - along the cycle
        if cycle:
            cycles.append(cycle)
    return cycles
