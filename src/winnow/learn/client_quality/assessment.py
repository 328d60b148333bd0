"""From departures to a score, a verdict and its reason for every client.

The effects of a client's statistics are compared with two things: with what chance does to as many rows of its classes,
and with the other clients, of which honest ones may be unlike the reference too (a random-effects model: the clients'
median effect ν, and a spread τ beyond chance). With q the effect that chance exceeds in a share β of the cases,

    score = (effect - ν) / √(q² + (z τ)²),    z the normal quantile of 1 - β

The statistics that look for wrong labels estimate one thing, so that the mean of their scores is one test. It may have
half of the false alarms, β = α / 2; the other tests share the other half. A client's score is the largest of its tests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.learn.client_quality.contribution import ContributionEstimate
from winnow.learn.client_quality.departures import (
    BLIND,
    BY_CLASS,
    COPIES,
    DETECTABLE,
    DEVIATION,
    EFFECT,
    LOSS,
    SKEWNESS,
    STATISTICS,
    TOWARDS,
    Departures,
)
from winnow.learn.client_quality.evidence import REPRESENTATION
from winnow.learn.client_quality.findings import Finding

Verdict: TypeAlias = Literal["fine", "different", "suspect", "harmful", "cannot tell"]
Table: TypeAlias = NDArray[np.float64]

FEWEST_CLIENTS = 5
"""With fewer, clients say too little about each other: the reference alone decides."""
NOTHING: Mapping[int, Any] = {}
UNLIKE_UPDATES = 6.0
"""The alarm for updates, in robust standard deviations: those of honest clients with other classes differ, too."""
INPUTS = sorted(place + i for place in BLIND.values() for i in (0, 1))
LABELS = sorted(TOWARDS.values())
MARGIN = 1.1
"""Null distributions are known from some draws out of a finite reference, and not better than that."""
CORRELATION = 0.8
"""Of the statistics that look for wrong labels, about."""
LARGE_EFFECT = 0.8
"""A loss this many standard deviations above what it should be is harm (Cohen's large effect)."""
FINDING_KINDS = {"inputs": ("column", "image", "inputs")}
"""Kinds of findings, where a kind of evidence is told in several."""
PLAIN_WORDS = {
    "inputs": "inputs: unlike the reference's",
    "labels": "labels: samples do not look like the reference's of the same class",
    "copies": "copies: many rows occur more than once",
    "updates": "updates: far from the others'",
    "contribution": "contribution: the model is better without this client",
}
LEAST_SKEWNESS = 1e-3
"""With less, the distribution is normal for all that matters."""
TOO_FEW = "too few samples to tell"


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
class ScoreTable:
    """Of K clients, by statistic: [K, S], label statistics together; -∞ where there is no evidence."""

    among_clients: Table
    """By how much it exceeds the typical client's, in units of what chance and the spread of clients allow."""
    by_chance: Table
    """The same, in units of what chance alone allows."""
    power: Table
    """[K], the score that a typical harm would have"""
    loss: Table
    """[K], by how many standard deviations the loss is above what it should be"""


def assess(
    history: Mapping[int, Sequence[Departures]],
    *,
    false_alarms: float = 0.05,
    updates: Mapping[int, float] = NOTHING,
    contribution: Mapping[int, ContributionEstimate] = NOTHING,
    findings: Mapping[int, Sequence[Finding]] = NOTHING,
) -> list[ClientAssessment]:
    """Assess the clients of `history`, whose departures come oldest first.

    `updates` are robust z-values; `findings` give the words. At most about a share `false_alarms` of honest clients is
    called suspect or harmful.
    """
    table, asked = score_table([*history.values()], false_alarms), any(history.values())
    assessed = []
    for row, client in enumerate(history):
        scores = _by_kind(table.among_clients[row])
        if client in updates:
            scores["updates"] = updates[client] / UNLIKE_UPDATES
        known = bool(scores) or client in contribution
        score = max((0.0, *scores.values())) if known else float("nan")
        harmful = client in contribution and contribution[client].harmful
        if score >= 1:
            verdict: Verdict = "harmful" if harmful or table.loss[row] >= LARGE_EFFECT else "suspect"
        elif not known or (asked and table.power[row] < 1):
            verdict = "cannot tell"
        else:
            verdict = "different" if harmful or table.by_chance[row].max() >= 1 else "fine"
        kinds = _told(scores, verdict, harmful=harmful)
        words = TOO_FEW if verdict == "cannot tell" else _words(kinds, findings.get(client, ()) if kinds else ())
        assessed.append(
            ClientAssessment(client=client, score=score, verdict=verdict, evidence=words, kinds=kinds, scores=scores)
        )
    return assessed


def score_table(history: Sequence[Sequence[Departures]], false_alarms: float) -> ScoreTable:
    """The scores of all clients, by statistic."""
    from scipy.special import ndtri  # noqa: PLC0415 - SciPy takes long to import

    table = np.stack([_combined(each) for each in history]) if history else np.empty((0, len(STATISTICS), 4))
    present = np.isfinite(table[..., EFFECT])
    level = _levels(present.any(axis=0), false_alarms)
    effect, deviation = table[..., EFFECT], table[..., DEVIATION]
    chance = deviation * _quantile(level, table[..., SKEWNESS])
    centre, spread = np.zeros(len(STATISTICS)), np.zeros(len(STATISTICS))
    for place in np.flatnonzero(present.sum(axis=0) >= FEWEST_CLIENTS):
        who = present[:, place]
        centre[place], spread[place] = _centre_and_spread(effect[who, place], deviation[who, place])
    bound = MARGIN * np.sqrt(chance**2 + (ndtri(level) * spread) ** 2)
    return ScoreTable(
        among_clients=_tests((effect - centre) / bound),
        by_chance=_tests((effect - np.maximum(centre, 0)) / chance),
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
    """The weighted mean over assessments. Later models count more, each twice as much as the one before."""
    if not assessments:
        return np.full((len(STATISTICS), 4), np.nan)
    weights = 0.5 ** np.arange(len(assessments))[::-1]
    return np.asarray(np.tensordot(weights / weights.sum(), np.stack([each.array for each in assessments]), 1))


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
    spread = 1.4826 * float(np.median(centre - effects[effects <= centre]))
    return centre, float(np.sqrt(max(spread**2 - float(np.median(deviations)) ** 2, 0.0)))


def _by_kind(scores: Table) -> dict[str, float]:
    """The scores of the kinds for which there is evidence.

    Wrong inputs depart by class, too, and raise the loss. So what departs by class speaks against labels only where
    the rows as such, seen without labels, are as they should be.
    """
    inputs, labels, copies = scores[INPUTS].max(), scores[LABELS].max(), scores[COPIES]
    by_class = max(labels, scores[BY_CLASS[REPRESENTATION]])
    explained = inputs >= min(1.0, labels)
    kinds = {"inputs": max(inputs, by_class) if explained else inputs, "copies": copies}
    if not explained:
        kinds["labels"] = by_class
    return {kind: float(score) for kind, score in kinds.items() if np.isfinite(score)}


def _told(scores: Mapping[str, float], verdict: Verdict, *, harmful: bool) -> tuple[str, ...]:
    if verdict in ("fine", "cannot tell"):
        return ()
    kinds = sorted((kind for kind, score in scores.items() if score >= 1), key=lambda kind: -scores[kind])
    if harmful:
        kinds.append("contribution")
    return tuple(kinds) or (max(scores, key=lambda kind: scores[kind]),)


def _words(kinds: Sequence[str], findings: Sequence[Finding]) -> str:
    """The strongest finding of the strongest kind of which something was found."""
    for kind in kinds:
        for finding in findings:
            if finding.kind in FINDING_KINDS.get(kind, (kind,)):
                return finding.text
    return PLAIN_WORDS[kinds[0]] if kinds else ""
