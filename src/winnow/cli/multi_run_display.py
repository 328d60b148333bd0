"""The progress of several runs at once."""

import time
from collections.abc import Sequence
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from winnow.config.schema import Experiment
from winnow.experiment.run_pool import RunAdvanced, RunFailed, RunMessage
from winnow.progress.live_display import REFRESH_PER_SECOND, format_duration, title


class MultiRunDisplay:
    """A line for all runs together and one for each that is running; in a pipe, a line when one ends."""

    def __init__(self, experiments: Sequence[Experiment], console: Console | None) -> None:
        self._experiments, self._console = experiments, console
        self._rounds = [0] * len(experiments)
        self._running: set[int] = set()
        self._completed = 0
        self._started = time.monotonic()
        self._live: Live | None = None
        if console is not None and console.is_terminal:
            self._live = Live(
                console=console, get_renderable=self._render, refresh_per_second=REFRESH_PER_SECOND, transient=True
            )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def on_message(self, index: int, message: RunMessage) -> None:
        if isinstance(message, RunAdvanced):
            self._rounds[index] = message.round
            self._running.add(index)
            return
        self._rounds[index] = self._experiments[index].all_rounds
        self._running.discard(index)
        self._completed += 1
        if self._console is not None and self._live is None:
            how = "failed" if isinstance(message, RunFailed) else "done"
            progress = ", ".join(filter(None, (self._count, self._left)))
            line = f"{title(self._experiments[index])}: {how} ({progress})"
            self._console.print(line, soft_wrap=True, markup=False)

    @property
    def _count(self) -> str:
        return f"{self._completed} of {len(self._experiments)} runs"

    @property
    def _left(self) -> str:
        """How long it will take, estimated from the rounds made so far."""
        total, done = sum(each.all_rounds for each in self._experiments), sum(self._rounds)
        spent = time.monotonic() - self._started
        return f"{format_duration(spent / done * (total - done))} left" if 0 < done < total else ""

    def _render(self) -> RenderableType:
        total, done = sum(each.all_rounds for each in self._experiments), sum(self._rounds)
        lines = Table.grid(padding=(0, 1))
        lines.add_row(self._count, ProgressBar(total=total, completed=done, width=20), self._left)
        for index in sorted(self._running):
            experiment = self._experiments[index]
            lines.add_row(
                f"{experiment.algorithm}, seed {experiment.seed}",
                ProgressBar(total=experiment.all_rounds, completed=self._rounds[index], width=20),
                f"round {self._rounds[index]}/{experiment.all_rounds}",
            )
        return lines
