"""The clients of a run as a table: how often each was invited, and what came out when its data were assessed."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import AnyEvent, Assessed, PolicyApplied, Rejected, RunError, Scored, Selected
from winnow.core.events import ALARMS, CANNOT_TELL, KEEP, READMIT, VERDICTS
from winnow.runs.view import RunView

ACTION_TEXT = {
    "exclude": "excluded",
    "down-weight": "weight reduced",
    KEEP: "kept by quality.keep",
    READMIT: "readmitted",
}
NOBODY = np.zeros(0, np.int64)
SHOWN_UP_TO, WORST_SHOWN, BEST_SHOWN = 30, 20, 5
"""Of more clients than can be taken in at a glance, so many at either end are shown."""
COLUMNS = ("name", "samples", "invited", "score", "verdict", "evidence")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientRow:
    """A client: its score (1 is the alarm threshold; not a number if it was not assessed), its verdict and why."""

    client: int
    name: str
    samples: int | None
    """None where the run folder does not say."""
    invited: int
    """How often it was asked to train."""
    score: float
    verdict: str
    evidence: str
    policy: str
    """What the run does about it at the end: "exclude", "down-weight", "keep" (by `quality.keep`) or nothing."""

    def record(self) -> dict[str, Any]:
        return {column: getattr(self, column) for column in COLUMNS}


@dataclass(frozen=True, kw_only=True)
class ClientTable:
    """All clients, the worst first."""

    rows: Sequence[ClientRow]
    assessed: int
    """How many clients were assessed, at least once."""
    assessments: Sequence[int]
    """The rounds after which clients were assessed; none where they never were."""
    actions: Sequence[PolicyApplied]
    """What followed from verdicts, in order."""

    @property
    def alarms(self) -> list[ClientRow]:
        """The clients whose data look bad."""
        return [row for row in self.rows if row.verdict in ALARMS]

    @property
    def when_assessed(self) -> str:
        """How often, and when for the last time, where clients were assessed at all."""
        often = "once" if len(self.assessments) == 1 else f"{len(self.assessments)} times, last"
        return f"assessed {often} after round {self.assessments[-1]}"

    def headline(self) -> str:
        """How many clients look bad."""
        return alarm_text(len(self.alarms), self.assessed)


@dataclass(frozen=True, kw_only=True, slots=True)
class LastAssessment:
    """What came out for one client."""

    score: float
    verdict: str
    evidence: str


NOT_ASSESSED = LastAssessment(score=math.nan, verdict=CANNOT_TELL, evidence="")


class LatestAssessments:
    """The last word about each client, told by events."""

    def __init__(self, events: Iterable[AnyEvent] = ()) -> None:
        self.of_client: dict[int, LastAssessment] = {}
        for event in events:
            self.follow(event)

    def follow(self, event: AnyEvent) -> None:
        if isinstance(event, Assessed):
            told = zip(event.clients.tolist(), event.scores.tolist(), event.verdicts, event.evidence, strict=True)
            for client, score, verdict, evidence in told:
                self.of_client[client] = LastAssessment(score=score, verdict=verdict, evidence=evidence)

    def headline(self) -> str:
        """How many clients look bad; empty where none does."""
        bad = sum(each.verdict in ALARMS for each in self.of_client.values())
        return alarm_text(bad, len(self.of_client)) if bad else ""


def alarm_text(bad: int, clients: int) -> str:
    if not bad:
        return "no client looks bad"
    return f"{bad:,} of {clients:,} clients look bad" if bad > 1 else f"1 of {clients:,} clients looks bad"


def read_client_table(view: RunView, events: Iterable[AnyEvent] | None = None) -> ClientTable:
    """The clients of a run, finished or not; `events` are its own, for whoever has read them already."""
    told = list(view.events() if events is None else events)
    invited = count_invitations(view, told)
    names, sizes = view.conditions.get("names", ()), view.conditions.get("sizes", ())
    assessments = [event.round for event in told if isinstance(event, Assessed)]
    actions = [event for event in told if isinstance(event, PolicyApplied)]
    latest = LatestAssessments(told).of_client
    policy = {event.client: "" if event.action == READMIT else event.action for event in actions}
    rows = [
        ClientRow(
            client=client,
            name=names[client] if names else f"client {client}",
            samples=sizes[client] if sizes else None,
            invited=times,
            score=found.score,
            verdict=found.verdict,
            evidence=found.evidence,
            policy=policy.get(client, ""),
        )
        for client, times in enumerate(invited.tolist())
        for found in [latest.get(client, NOT_ASSESSED)]
    ]
    rows.sort(key=_badness)
    return ClientTable(rows=rows, assessed=len(latest), assessments=assessments, actions=actions)


def _badness(row: ClientRow) -> tuple[int, float, int]:
    rank = VERDICTS.index(row.verdict) if row.verdict in VERDICTS else len(VERDICTS)
    return rank, -row.score if math.isfinite(row.score) else math.inf, row.client


def count_invitations(view: RunView, events: Sequence[AnyEvent]) -> NDArray[np.int64]:
    """How often each client was asked to train. Without recorded conditions, clients are those heard of."""
    known = view.conditions.get("of_client")
    selected = [event for event in events if isinstance(event, Selected)]
    for event in selected:
        _check(view, event.clients.ndim == 1 and event.clients.shape == event.counts.shape)
    drawn = np.concatenate([NOBODY, *(event.clients for event in selected)])
    clients = max(_heard_of(view, events), _one_more_than_last(view, drawn))
    if known is not None and clients > len(known):
        raise RunError(f"{view.path} is damaged: its log names client {clients - 1}, its conditions do not")
    invited = np.zeros(clients if known is None else len(known), np.int64)
    np.add.at(invited, drawn, np.concatenate([NOBODY, *(event.counts for event in selected)]))
    return invited


def _heard_of(view: RunView, events: Iterable[AnyEvent]) -> int:
    """One more than the highest number of a client in the log, selections apart, which must make sense."""
    clients = 0
    for event in events:
        if isinstance(event, Scored):
            clients = max(clients, len(event.scores))
        elif isinstance(event, PolicyApplied | Rejected):
            _check(view, event.client >= 0)
            clients = max(clients, event.client + 1)
        elif isinstance(event, Assessed):
            _check(view, event.clients.shape == event.scores.shape)
            clients = max(clients, _one_more_than_last(view, event.clients))
    return clients


def _one_more_than_last(view: RunView, clients: NDArray[np.int64]) -> int:
    _check(view, clients.min(initial=0) >= 0)
    return int(clients.max(initial=-1)) + 1


def _check(view: RunView, makes_sense: bool) -> None:
    if not makes_sense:
        raise RunError(f"{view.path} is damaged: its log does not say who was selected or assessed")
