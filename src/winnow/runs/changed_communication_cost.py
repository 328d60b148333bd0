"""A run on another clock: what it would have been like, had communication cost more or less in every round.

A constant added to every reply of a round changes neither their order nor what is learnt, so one run serves all.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from winnow.core import AnyEvent, ConfigError, Rejected, RoundFinished
from winnow.runs.view import RunView


def retimed_events(events: Iterable[AnyEvent], seconds: float) -> Iterator[AnyEvent]:
    """The events of a run as if each of its rounds had taken so many seconds longer. What devices spent stays."""
    for event in events:
        over = event.round if isinstance(event, RoundFinished | Rejected) else max(0, event.round - 1)
        yield replace(event, at=event.at + seconds * over)


def with_communication_cost(run: RunView, seconds: float) -> RunView:
    """The run as if `fleet.communication` had been so many seconds, for a run in plain rounds."""
    schedule, fleet = run.config["schedule"]["name"], run.config["fleet"]
    if schedule != "rounds":
        raise ConfigError(f"schedule.name = {schedule!r}: another communication cost could change the order of replies")
    if "communication" not in fleet:
        raise ConfigError(f"fleet.name = {fleet.get('name')!r} has no communication cost to change")
    return replace(run, log=list(retimed_events(run.log, seconds - fleet["communication"])))
