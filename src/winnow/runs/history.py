"""The course of a run: what stood after each round, and what it had cost by then."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from winnow.core import AnyEvent, Evaluated, Metrics, RoundFinished

NOT_TRAINED = float("nan")


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryPoint:
    """An evaluated version of the model; seconds, joules and bytes are counted from the beginning of the run."""

    round: int
    version: int
    seconds: float
    joules: float
    loss: float
    metrics: Metrics
    sent_bytes: float = 0.0
    received_bytes: float = 0.0

    def value(self, data: str, metric: str) -> float | None:
        """A metric as measured on some data, if it was."""
        return self.metrics.get(data, {}).get(metric)


class RunHistory:
    """Turns events into points, one event at a time."""

    def __init__(self) -> None:
        self._joules = self._sent = self._received = 0.0

    def follow(self, event: AnyEvent) -> HistoryPoint | None:
        """The point that this event adds, if it adds one."""
        if isinstance(event, RoundFinished):
            self._joules += event.joules
            self._sent += event.cost.sent_bytes
            self._received += event.cost.received_bytes
            return self._point(event, event.loss)
        if isinstance(event, Evaluated):
            return self._point(event, NOT_TRAINED)
        return None

    def _point(self, event: Evaluated | RoundFinished, loss: float) -> HistoryPoint:
        return HistoryPoint(
            round=event.round,
            version=event.version,
            seconds=event.at,
            joules=self._joules,
            loss=loss,
            metrics=event.metrics,
            sent_bytes=self._sent,
            received_bytes=self._received,
        )


def points(events: Iterable[AnyEvent]) -> Iterator[HistoryPoint]:
    """All points of a run, in order."""
    track = RunHistory()
    for event in events:
        point = track.follow(event)
        if point is not None:
            yield point
