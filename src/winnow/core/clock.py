"""Time has one owner. A virtual clock moves when told to; nothing else in a simulation knows what time it is."""

from typing import Protocol


class Clock(Protocol):
    """Seconds since the run began."""

    @property
    def now(self) -> float: ...


class VirtualClock:
    """Device time in a simulated world: it only moves forward, and only when advanced."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    @property
    def now(self) -> float:
        return self._now

    def advance_to(self, moment: float) -> None:
        self._now = max(self._now, moment)
