"""What the figures show, gathered from a run's events."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.core import AnyEvent, Assessed, Rejected, Scored
from winnow.runs import EvaluationRecord, HistoryPoint, RunLabel, RunView, Summary, points
from winnow.runs.client_table import ClientTable, count_invitations, read_client_table

ALL_CLIENTS = "all clients"


@dataclass(frozen=True, kw_only=True)
class ParticipationCounts:
    """How often each client was selected, and what was done to its data."""

    labels: tuple[str, ...]
    of_client: NDArray[np.int64]
    selections: NDArray[np.int64]
    names: Sequence[str] = ()
    """What clients are called; none where they have only numbers."""

    def client_name(self, client: int) -> str:
        return self.names[client] if self.names else f"client {client}"

    @property
    def order(self) -> NDArray[np.int64]:
        """Clients of a condition side by side, the clean ones first."""
        return np.argsort(self.of_client, kind="stable")


@dataclass(frozen=True, kw_only=True)
class ScoreHistory:
    """The scores of equation 13 by round: one row a round, one column a client."""

    rounds: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RunPlotData:
    """A run, ready to be drawn."""

    label: RunLabel
    summary: Summary
    points: tuple[HistoryPoint, ...]
    participation: ParticipationCounts
    scores: ScoreHistory | None
    rejections: Mapping[str, Sequence[Rejected]]
    """By reason, the replies that were not aggregated; the most frequent first."""
    config_text: str
    evaluation: EvaluationRecord | None = None
    clients: ClientTable | None = None
    """What is known of clients' data; None where they were not assessed."""
    false_alarms: float | None = None
    """The share of honest clients that may be called suspect."""


Groups: TypeAlias = Mapping[str, Sequence[RunPlotData]]
"""Runs by experiment: those of a group differ in nothing but the seed."""


def read_plot_data(view: RunView) -> RunPlotData:
    """Read a run's events once and keep what is drawn."""
    events = list(view.events())
    course = tuple(points(events))
    rejections: dict[str, list[Rejected]] = {}
    for event in events:
        if isinstance(event, Rejected):
            rejections.setdefault(event.reason, []).append(event)
    assessed = any(isinstance(event, Assessed) for event in events)
    scores = _scores([event for event in events if isinstance(event, Scored)])
    return RunPlotData(
        label=view.label,
        summary=view.summary_of(events, course),
        points=course,
        participation=_participation(view, events),
        scores=scores,
        rejections=dict(sorted(rejections.items(), key=lambda item: -len(item[1]))),
        config_text=view.config_text,
        evaluation=view.evaluation,
        clients=read_client_table(view, events) if assessed else None,
        false_alarms=_false_alarms(view) if assessed else None,
    )


def _false_alarms(view: RunView) -> float | None:
    share = view.config.get("quality", {}).get("false_alarms")
    return share if isinstance(share, float) else None


def _participation(view: RunView, events: Sequence[AnyEvent]) -> ParticipationCounts:
    """Count selections. Without recorded conditions, the clients heard of are one group."""
    selections = count_invitations(view, events)
    if view.conditions:
        labels, of_client = tuple(view.conditions["labels"]), np.asarray(view.conditions["of_client"], np.int64)
    else:
        labels, of_client = (ALL_CLIENTS,), np.zeros(len(selections), np.int64)
    names = view.conditions.get("names", ())
    return ParticipationCounts(labels=labels, of_client=of_client, selections=selections, names=names)


def _scores(scored: list[Scored]) -> ScoreHistory | None:
    if not scored:
        return None
    return ScoreHistory(
        rounds=np.array([event.round for event in scored]), values=np.stack([event.scores for event in scored])
    )
