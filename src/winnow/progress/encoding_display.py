"""How far a frozen encoder has come with the samples of a run, on standard error."""

import time

from rich.console import Console

from winnow.progress.live_display import SECONDS_BETWEEN_LINES, format_duration

QUIET_SECONDS = 2.0
"""What takes no longer is not worth a line."""


class EncodingDisplay:
    """Called with the samples that are encoded and all that are to be; in a terminal one line stays in place."""

    def __init__(self, console: Console | None) -> None:
        self._console, self._told = console, 0.0
        self._first: tuple[float, int] | None = None

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        began, before = self._first = self._first or (now, done)
        spent, last, console = now - began, done == total, self._console
        if console is None or spent < QUIET_SECONDS:
            return
        pause = 0.2 if console.is_terminal else SECONDS_BETWEEN_LINES
        if now - self._told < pause and not (last and self._told):
            return
        self._told = now
        left = f" · {format_duration(spent / (done - before) * (total - done))} left" if done < total else ""
        end = "\r" if console.is_terminal and not last else "\n"
        console.print(f"encoding: {done:,} of {total:,} samples{left}    ", end=end, markup=False, soft_wrap=True)
