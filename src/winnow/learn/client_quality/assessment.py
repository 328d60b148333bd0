"""From departures to a score, a verdict and its reason for every client.

The effects of a client's statistics are compared with two things: with what chance does to as many rows of its classes,
and with the other clients, of which honest ones may be unlike the reference too (a random-effects model: the clients'
median effect ν, and a spread τ beyond chance). With q the effect that chance exceeds in a share α / S of the cases,
where S is the number of statistics,

    score = max over statistics of (effect - ν) / √(q² + (z τ)²),    z the normal quantile of 1 - α / S
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from winnow.learn.client_quality.departures import (
    BLIND,
    COPIES,
    DETECTABLE,
    DEVIATION,
    EFFECT,
    SKEWNESS,
    STATISTICS,
    Departures,
)
from winnow.learn.client_quality.findings import Finding

Verdict: TypeAlias = Literal["fine", "different", "suspect", "harmful", "cannot tell"]
Table: TypeAlias = NDArray[np.float64]

FEWEST_CLIENTS = 5
"""With fewer, clients say too little about each other: the reference alone decides."""
EXPLAINED = 0.4
"""Where rows seen without labels depart by this share of what they do by class, inputs are wrong rather than labels."""
UNLIKE_UPDATES = 6.0
"""The alarm for updates, in robust standard deviations: those of honest clients with other classes differ, too."""
INPUTS = sorted(place + i for place in BLIND.values() for i in (0, 1))
BY_CLASS_STATISTICS = [place for place in range(len(STATISTICS)) if place not in (*INPUTS, COPIES)]
OF_KIND: dict[str, tuple[str, ...]] = {"inputs": ("column", "image", "inputs")}
"""Kinds of findings that tell more of a kind of evidence."""
PLAIN_WORDS = {
    "inputs": "inputs: unlike the reference's",
    "labels": "labels: samples do not look like the reference's of the same class",
    "copies": "copies: most rows occur more than once",
    "updates": "updates: far from the others'",
    "contribution": "contribution: the model is better without it",
}


@dataclass(frozen=True, kw_only=True)
class ClientAssessment:
    """What is thought of one client's data, and why."""

    client: int
    score: float
    """1 is the alarm, 0 what is expected of an honest client; NaN where nothing is known."""
    verdict: Verdict
    evidence: str
    """One line; empty if there is nothing to say."""
    kinds: tuple[str, ...]
    """Of the evidence, strongest first: inputs, labels, copies, updates, contribution."""
    scores: Mapping[str, float]
    """By kind, in units of the alarm."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Scores:
    """Of K clients, by statistic [K, S]."""

    among_clients: Table
    """Against chance and the other clients."""
    by_chance: Table
    """Against chance alone."""
    power: NDArray[np.float64]
    """[K], the score that a typical harm would have"""


def assess(
    history: Mapping[int, Sequence[Departures]],
    *,
    false_alarms: float = 0.05,
    updates: Mapping[int, float] = {},
    contribution: Mapping[int, ContributionEstimate] = {},
    findings: Mapping[int, Sequence[Finding]] = {},
) -> list[ClientAssessment]:
    """Assess the clients of `history`, whose departures come oldest first.

    `updates` are robust z-values; `findings`, strongest first, give the words. At the threshold, about a share
    `false_alarms` of honest clients is called suspect or harmful.
    """
