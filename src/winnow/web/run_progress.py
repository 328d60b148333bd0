"""How far a run has come, told by its events one after another."""

import math
from collections.abc import Iterable, Mapping

from winnow.core import AnyEvent
from winnow.runs import HistoryPoint, RunLabel
from winnow.runs.history import RunHistory
from winnow.runs.summary import JOULES_PER_WH, PRIVACY


class RunProgress:
    """The best value so far, the last one, and what has been spent."""

    def __init__(self, label: RunLabel) -> None:
        self._label, self._history = label, RunHistory()
        self.best: float | None = None
        self.last: float | None = None
        self.rounds, self.seconds, self.wh = 0, 0.0, 0.0
        self.privacy: Mapping[str, float] = {}

    def follow(self, events: Iterable[AnyEvent]) -> list[HistoryPoint]:
        """The points that these events add."""
        added = [point for event in events if (point := self._history.follow(event)) is not None]
        for point in added:
            self._add(point)
        return added

    def _add(self, point: HistoryPoint) -> None:
        self.rounds, self.privacy = max(self.rounds, point.round), point.metrics.get(PRIVACY, self.privacy)
        if self._label.clock != "none":
            self.seconds, self.wh = point.seconds, point.joules / JOULES_PER_WH
        value = point.value(self._label.evaluated_by, self._label.metric)
        if value is None or math.isnan(value):
            return
        sign = -1 if self._label.lower_is_better else 1
        self.last = value
        self.best = value if self.best is None or sign * value > sign * self.best else self.best
