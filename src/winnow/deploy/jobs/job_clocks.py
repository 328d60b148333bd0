"""Clocks of a job's runner: the time of the job, and the time that counts towards deadlines."""

import math
import time


class WallClock:
    """Seconds since the job started; a job that was interrupted continues from `now`."""

    def __init__(self, now: float = 0.0) -> None:
        self._zero = time.monotonic() - now

    @property
    def now(self) -> float:
        return time.monotonic() - self._zero


class DeadlineClock:
    """Seconds that count towards deadlines: it is paused while too few sites participate."""

    def __init__(self) -> None:
        self._paused_seconds = 0.0
        self._paused_since: float | None = None

    @property
    def now(self) -> float:
        return (time.monotonic() if self._paused_since is None else self._paused_since) - self._paused_seconds

    def remaining(self, deadline: float) -> float:
        """Seconds until the deadline; infinite while the clock is paused."""
        return math.inf if self._paused_since is not None else deadline - self.now

    def set_paused(self, paused: bool) -> None:
        if paused and self._paused_since is None:
            self._paused_since = time.monotonic()
        elif not paused and self._paused_since is not None:
            self._paused_seconds += time.monotonic() - self._paused_since
            self._paused_since = None
