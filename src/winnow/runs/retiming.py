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
    pace, fleet = run.config["schedule"]["name"], run.config["fleet"]
    if pace != "rounds":
        raise ConfigError(
            f"schedule.name = {pace!r}: replies may come in another order with another communication cost"
        )
    if "communication" not in fleet:
        raise ConfigError(f"fleet.name = {fleet.get('name')!r} has no communication cost that could be changed")
    return replace(run, log=list(retimed_events(run.log, seconds - fleet["communication"])))
