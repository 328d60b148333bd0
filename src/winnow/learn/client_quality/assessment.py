"""From scores to a verdict and its reason for every client."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from typing import Any

from winnow.core.events import CANNOT_TELL, DIFFERENT, FINE, HARMFUL, SUSPECT, Verdict
from winnow.learn.client_quality.contribution import ContributionEstimate
from winnow.learn.client_quality.departures import BY_CLASS, COPIES, Departures
from winnow.learn.client_quality.evidence import REPRESENTATION
from winnow.learn.client_quality.findings import Finding
from winnow.learn.client_quality.score_table import INPUTS, LABELS, ClientSpread, ScoreTable, Table, score_table

NOTHING: Mapping[int, Any] = {}
UNLIKE_UPDATES = 6.0
"""The alarm for updates, in robust standard deviations: those of honest clients with other classes differ, too."""
LARGE_EFFECT = 0.8
"""A loss this many standard deviations above what it should be is harm (Cohen's large effect)."""
FINDING_KINDS = {"inputs": ("column", "image", "inputs")}
"""Kinds of findings, where a kind of evidence is told in several."""
PLAIN_WORDS = {
    "inputs": "inputs: unlike the other clients'",
    "labels": "labels: fit the inputs less well than at other clients; many may be wrong",
    "copies": "copies: many rows occur more than once",
    "updates": "updates: far from the others'",
    "contribution": "contribution: the model is better without this client",
}
MILD_WORDS = PLAIN_WORDS | {
    "inputs": "inputs: somewhat unlike the other clients'",
    "labels": "labels: go with somewhat other inputs than at other clients",
}
"""Below the alarm."""
NO_EVIDENCE = "no evidence so far"
TOO_LITTLE_POWER = "too few samples, or clients too unlike one another, to tell"
LABELS_UNJUDGED = "inputs are as expected; labels could not be judged: {}"
LABELS_UNSEEN = "inputs are as expected; labels were not looked at"
INPUTS_UNSEEN = "labels are as expected; inputs were not looked at"
DATA_UNSEEN = "its data were not looked at"
SMALL_EFFECT = 0.2
"""If half of the labels were random and the loss rose by fewer standard deviations, the model knows little about them
(Cohen's small effect)."""


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


def unknown_size(client: int) -> float:
    """Any difference may matter."""
    return inf


def assess(
    history: Mapping[int, Sequence[Departures]],
    *,
    false_alarms: float = 0.05,
    asked: bool = True,
    updates: Mapping[int, float] = NOTHING,
    contribution: Mapping[int, ContributionEstimate] = NOTHING,
    findings: Callable[[int], Sequence[Finding]] = no_findings,
    size_of: Callable[[int], float] = unknown_size,
    others: ClientSpread | None = None,
) -> list[ClientAssessment]:
    """Assess the clients of `history`, whose departures come oldest first.

    `updates` are robust z-values; `findings` gives the words for a client that needs some; `size_of` says how large the
    differences of its inputs are, where less than 1 does not matter. At most about a share `false_alarms` of honest
    clients is called suspect or harmful. Where clients were `asked` about their data, updates clear nobody who told
    nothing. `others` say what clients are like where these are not the clients of a federation.
    """
    table = score_table([*history.values()], false_alarms, others)
    return [
        _assessed(
            client,
            table,
            row,
            asked=asked,
            update=updates[client] / UNLIKE_UPDATES if client in updates else None,
            contribution=contribution.get(client),
            findings=findings,
            size_of=size_of,
        )
        for row, client in enumerate(history)
    ]


def _assessed(
    client: int,
    table: ScoreTable,
    row: int,
    *,
    asked: bool,
    update: float | None,
    contribution: ContributionEstimate | None,
    findings: Callable[[int], Sequence[Finding]],
    size_of: Callable[[int], float],
) -> ClientAssessment:
    """One client's assessment. Its update is an alarm only where it tells nothing of its data."""
    harmful = contribution is not None and contribution.harmful
    statistics, harm = table.among_clients[row], harmful or bool(table.loss[row] >= LARGE_EFFECT)
    unlike_inputs = statistics[[*INPUTS, *BY_CLASS.values()]].max() >= 1
    size = size_of(client) if unlike_inputs and not harm else inf
    scores = _by_kind(statistics, size)
    unlike_update = update is not None and update >= 1
    enough = max(table.input_power[row], table.label_power[row]) >= 1
    if not scores and (update is not None or contribution is not None):
        scores, enough = {} if update is None else {"updates": update}, not asked
    score = max(0.0, *scores.values()) if scores else nan
    if score >= 1:
        verdict: Verdict = HARMFUL if harm else SUSPECT
    elif not enough:
        verdict = CANNOT_TELL
    else:
        unlike = harmful or unlike_update or size < 1 or table.beyond_null[row].max() >= 1
        verdict = DIFFERENT if unlike else FINE
    kinds = _told(scores, verdict, unlike_update=unlike_update, harmful=harmful)
    if verdict == CANNOT_TELL:
        words = TOO_LITTLE_POWER if scores else NO_EVIDENCE
    elif verdict == FINE:
        words = _left_open(table, row)
    else:
        words = _words(kinds, findings(client) if kinds else (), MILD_WORDS if verdict == DIFFERENT else PLAIN_WORDS)
    return ClientAssessment(client=client, score=score, verdict=verdict, evidence=words, kinds=kinds, scores=scores)


def _by_kind(scores: Table, size: float) -> dict[str, float]:
    """The scores of the kinds for which there is evidence.

    Inputs that differ by less than matters, a `size` below 1, have no higher score than that, whatever their number of
    rows. Wrong inputs depart by class, too, and raise the loss. So what departs by class speaks against labels only
    where the rows as such, seen without labels, are as they should be, or differ by too little to explain it.
    """
    inputs, labels, copies = scores[INPUTS].max(), scores[LABELS].max(), scores[COPIES]
    explained = inputs >= min(1.0, labels) and size >= 1
    by_class = max(labels, min(scores[BY_CLASS[REPRESENTATION]], size))
    kinds = {"inputs": max(inputs, by_class) if explained else min(inputs, size), "copies": copies}
    if not explained:
        kinds["labels"] = by_class
    return {kind: float(score) for kind, score in kinds.items() if isfinite(score)}


def _left_open(table: ScoreTable, row: int) -> str:
    """What is not known of a client that is called fine, and why; empty if both inputs and labels are as expected."""
    inputs, labels = isfinite(table.input_power[row]), isfinite(table.label_power[row])
    if not (inputs and labels):
        return LABELS_UNSEEN if inputs else INPUTS_UNSEEN if labels else DATA_UNSEEN
    if table.label_power[row] >= 1:
        return ""
    knows_little = table.label_contrast[row] < SMALL_EFFECT
    return LABELS_UNJUDGED.format("the model knows too little about them" if knows_little else "too few samples")


def _told(scores: Mapping[str, float], verdict: Verdict, *, unlike_update: bool, harmful: bool) -> tuple[str, ...]:
    """The kinds of evidence to speak of, strongest first: those with an alarm, or else the strongest."""
    if verdict in (FINE, CANNOT_TELL):
        return ()
    kinds = sorted((kind for kind, score in scores.items() if score >= 1), key=lambda kind: -scores[kind])
    if unlike_update and "updates" not in kinds:
        kinds.append("updates")
    if harmful:
        kinds.append("contribution")
    return tuple(kinds) or (max(scores, key=lambda kind: scores[kind]),)


def _words(kinds: Sequence[str], findings: Sequence[Finding], without_finding: Mapping[str, str]) -> str:
    """The strongest finding of the strongest kind of which something was found."""
    for kind in kinds:
        for finding in findings:
            if finding.kind in FINDING_KINDS.get(kind, (kind,)):
                return finding.text
    return without_finding[kinds[0]]
