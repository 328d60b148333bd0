"""Live progress of a run: one more reader of its events. It writes to standard error and never to standard output."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from winnow.config.schema import Experiment
from winnow.core import AnyEvent, Evaluated, RoundFinished, Selected
from winnow.experiment.build_simulation import PreparedRun
from winnow.runs import HistoryPoint, PrivacyBudget, read_privacy_budgets
from winnow.runs.client_table import LatestAssessments
from winnow.runs.history import RunHistory
from winnow.runs.summary import JOULES_PER_WH, PRIVACY, privacy_spent_lines

REFRESH_PER_SECOND = 8
SECONDS_BETWEEN_LINES = 5.0


@dataclass(frozen=True, kw_only=True)
class ProgressHeader:
    """What a run is called while it runs."""

    title: str
    metric: str
    rounds: int
    evaluated_by: str = "reference"
    lower_is_better: bool = False
    privacy_budgets: Mapping[str, PrivacyBudget] = field(default_factory=dict)
    devices: bool = True
    """Whether devices are simulated, whose time and energy there is to tell."""


class ProgressState:
    """How far a run has come, told by its events."""

    def __init__(self, headline: ProgressHeader) -> None:
        self.headline = headline
        self.point: HistoryPoint | None = None
        self.value: float | None = None
        """The last reading: not every round need have one."""
        self.best: float | None = None
        self.readings: list[tuple[int, float]] = []
        """Every reading with its round."""
        self.selected = 0
        self._track, self._assessments = RunHistory(), LatestAssessments()
        self._began: tuple[float, int] | None = None

    def follow(self, event: AnyEvent) -> None:
        if isinstance(event, Selected):
            self.selected = int(event.counts.sum())
        self._assessments.follow(event)
        point = self._track.follow(event)
        if point is not None:
            self.point = point
            reading = point.value(self.headline.evaluated_by, self.headline.metric)
            if reading is not None:
                self.value = reading
                self.readings.append((point.round, reading))
            known = [value for value in (self.best, self.value) if value is not None and not math.isnan(value)]
            best = min if self.headline.lower_is_better else max
            self.best = best(known, default=None)

    def start(self) -> None:
        """Time left is estimated from the rounds from here on; what was replayed before took no time."""
        self._began = (time.monotonic(), self.round)

    @property
    def round(self) -> int:
        return self.point.round if self.point else 0

    @property
    def seconds_left(self) -> float | None:
        if self._began is None or self.round <= self._began[1]:
            return None
        spent, done = time.monotonic() - self._began[0], self.round - self._began[1]
        return spent / done * (self.headline.rounds - self.round)

    @property
    def left(self) -> str:
        return "" if self.seconds_left is None else f"{format_duration(self.seconds_left)} left"

    def figures(self) -> str:
        """Metric, best, how many clients look bad, the time and energy of simulated devices, how many clients were
        selected, and what privacy it has cost.
        """
        if self.point is None:
            return "preparing"
        parts = [
            f"{self.headline.metric} {format_score(self.value)}",
            f"best {format_score(self.best)}",
            *filter(None, [self._assessments.headline()]),
            *(self._devices(self.point) if self.headline.devices else []),
            f"{self.selected} selected",
            *privacy_spent_lines(self.point.metrics.get(PRIVACY, {}), self.headline.privacy_budgets),
        ]
        return " · ".join(parts)

    @staticmethod
    def _devices(point: HistoryPoint) -> Iterator[str]:
        yield f"device {format_duration(point.seconds)}"
        if point.joules:
            yield f"{point.joules / JOULES_PER_WH:.3g} Wh"


class ProgressDisplay(Protocol):
    """Something that shows the course of a run while it is open."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def on_event(self, event: AnyEvent) -> None: ...


class NoDisplay:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def on_event(self, event: AnyEvent) -> None: ...


class TerminalDisplay:
    """Two lines that stay in place. A thread draws them a few times a second, so quick rounds are not slowed down."""

    def __init__(self, course: ProgressState, console: Console) -> None:
        self._course = course
        self._live = Live(
            console=console, get_renderable=self._render, refresh_per_second=REFRESH_PER_SECOND, transient=True
        )

    def __enter__(self) -> Self:
        self._course.start()
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def on_event(self, event: AnyEvent) -> None:
        self._course.follow(event)

    def _render(self) -> RenderableType:
        course, rounds = self._course, self._course.headline.rounds
        line = Table.grid(padding=(0, 1))
        line.add_row(
            Text(course.headline.title, style="bold"),
            ProgressBar(total=rounds, completed=course.round, width=20),
            f"round {course.round}/{rounds}",
            course.left,
        )
        return Group(line, Text(course.figures(), style="cyan", no_wrap=True, overflow="ellipsis"))


class LineDisplay:
    """A line now and then, for logs and pipes."""

    def __init__(self, course: ProgressState, say: Callable[[str], None]) -> None:
        self._course, self._say = course, say
        self._last = 0.0

    def __enter__(self) -> Self:
        self._course.start()
        self._last = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None: ...

    def on_event(self, event: AnyEvent) -> None:
        self._course.follow(event)
        if isinstance(event, RoundFinished | Evaluated) and time.monotonic() - self._last > SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            headline = self._course.headline
            parts = f"round {event.round}/{headline.rounds}", self._course.left, self._course.figures()
            self._say(f"{headline.title}: {' · '.join(filter(None, parts))}")


class Progress:
    """Shows a run from its start to the end of the context, however it ends. Silent without a console.

    `earlier` are the events of a run that is resumed.
    """

    def __init__(self, experiment: Experiment, console: Console | None, earlier: Iterable[AnyEvent] = ()) -> None:
        self._experiment, self._console, self._earlier = experiment, console, earlier
        self._display: ProgressDisplay = NoDisplay()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.__exit__(kind, error, trace)

    def on_start(self, prepared: PreparedRun) -> None:
        if self._console is None:
            return
        if prepared.plan.notice:
            self._console.print(prepared.plan.notice, soft_wrap=True, highlight=False, markup=False)
        course = ProgressState(
            ProgressHeader(
                title=title(self._experiment),
                metric=prepared.plan.metric,
                rounds=self._experiment.all_rounds,
                evaluated_by=self._experiment.evaluation.by,
                lower_is_better=prepared.plan.lower_is_better,
                privacy_budgets=read_privacy_budgets(self._experiment.model_dump()),
                devices=prepared.clock == "device",
            )
        )
        for event in self._earlier:
            course.follow(event)
        self._display = display_for(course, self._console).__enter__()

    def on_event(self, event: AnyEvent) -> None:
        self._display.on_event(event)


def title(experiment: Experiment) -> str:
    return f"{experiment.name} · {experiment.algorithm} · seed {experiment.seed}"


def display_for(course: ProgressState, console: Console) -> ProgressDisplay:
    """The way to show progress that suits where it goes."""
    if console.is_jupyter:
        from winnow.progress.notebook_display import NotebookDisplay  # noqa: PLC0415 - IPython is there in notebooks

        return NotebookDisplay(course)
    if console.is_terminal:
        return TerminalDisplay(course, console)
    return LineDisplay(course, lambda line: console.print(line, soft_wrap=True, highlight=False, markup=False))


def format_score(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def format_duration(seconds: float) -> str:
    """About three digits in the unit that fits: 0.25 s, 12 s, 4.5 min, 3.2 h."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 or not seconds else f"{seconds:.2g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
