"""From scores to a verdict and its reason for every client."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, Literal, TypeAlias

from winnow.learn.client_quality.contribution import ContributionEstimate
from winnow.learn.client_quality.departures import BLIND, BY_CLASS, COPIES, Departures
from winnow.learn.client_quality.evidence import REPRESENTATION
from winnow.learn.client_quality.findings import Finding
from winnow.learn.client_quality.score_table import LABELS, ScoreTable, Table, score_table

Verdict: TypeAlias = Literal["fine", "different", "suspect", "harmful", "cannot tell"]

NOTHING: Mapping[int, Any] = {}
UNLIKE_UPDATES = 6.0
"""The alarm for updates, in robust standard deviations: those of honest clients with other classes differ, too."""
INPUTS = sorted(place + i for place in BLIND.values() for i in (0, 1))
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
NO_EVIDENCE = "no evidence so far"
TOO_LITTLE_POWER = "too few samples, or clients too unlike one another, to tell"


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


def no_findings(client: int) -> Sequence[Finding]:
    return ()


def assess(
    history: Mapping[int, Sequence[Departures]],
    *,
    false_alarms: float = 0.05,
    updates: Mapping[int, float] = NOTHING,
    contribution: Mapping[int, ContributionEstimate] = NOTHING,
    findings: Callable[[int], Sequence[Finding]] = no_findings,
) -> list[ClientAssessment]:
    """Assess the clients of `history`, whose departures come oldest first.

    `updates` are robust z-values; `findings` gives the words for a client that needs some. At most about a share
    `false_alarms` of honest clients is called suspect or harmful.
    """
    table = score_table([*history.values()], false_alarms)
    return [
        _assessed(
            client,
            table,
            row,
            update=updates[client] / UNLIKE_UPDATES if client in updates else None,
            harmful=client in contribution and contribution[client].harmful,
            findings=findings,
        )
        for row, client in enumerate(history)
    ]


def _assessed(
    client: int,
    table: ScoreTable,
    row: int,
    *,
    update: float | None,
    harmful: bool,
    findings: Callable[[int], Sequence[Finding]],
) -> ClientAssessment:
    """One client's assessment. Its update is an alarm only where it tells nothing of its data."""
    scores = _by_kind(table.among_clients[row])
    unlike_update = update is not None and update >= 1
    enough = table.power[row] >= 1
    if not scores and update is not None:
        scores, enough = {"updates": update}, True
    score = max(0.0, *scores.values()) if scores else nan
    if score >= 1:
        verdict: Verdict = "harmful" if harmful or table.loss[row] >= LARGE_EFFECT else "suspect"
    elif not enough:
        verdict = "cannot tell"
    else:
        unlike = harmful or unlike_update or table.beyond_null[row].max() >= 1
        verdict = "different" if unlike else "fine"
    kinds = _told(scores, verdict, unlike_update=unlike_update, harmful=harmful)
    words = _words(kinds, findings(client) if kinds else ())
    if verdict == "cannot tell":
        words = TOO_LITTLE_POWER if scores else NO_EVIDENCE
    return ClientAssessment(client=client, score=score, verdict=verdict, evidence=words, kinds=kinds, scores=scores)


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
    return {kind: float(score) for kind, score in kinds.items() if isfinite(score)}


def _told(scores: Mapping[str, float], verdict: Verdict, *, unlike_update: bool, harmful: bool) -> tuple[str, ...]:
    """The kinds of evidence to speak of, strongest first: those with an alarm, or else the strongest."""
    if verdict in ("fine", "cannot tell"):
        return ()
    kinds = sorted((kind for kind, score in scores.items() if score >= 1), key=lambda kind: -scores[kind])
    if unlike_update and "updates" not in kinds:
        kinds.append("updates")
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
