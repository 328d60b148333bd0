"""Live progress of a run in a notebook."""

import time
from html import escape
from types import TracebackType
from typing import Any, Self

from IPython.display import HTML, display

from winnow.core import AnyEvent
from winnow.progress.live_display import REFRESH_PER_SECOND, ProgressState
from winnow.report.svg_line_chart import svg_line_chart


class NotebookDisplay:
    """A bar and the curve so far, redrawn in place. Gone after the run, which has a table and a curve of its own; what
    was interrupted stays.
    """

    def __init__(self, course: ProgressState) -> None:
        self._course, self._drawn = course, 0.0
        self._handle: Any = None

    def __enter__(self) -> Self:
        self._course.start()
        self._handle = display(HTML(self._html()), display_id=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._draw("" if error is None else self._html())

    def on_event(self, event: AnyEvent) -> None:
        self._course.follow(event)
        if time.monotonic() - self._drawn > 1 / REFRESH_PER_SECOND:
            self._draw(self._html())

    def _draw(self, shown: str) -> None:
        self._handle.update(HTML(shown))
        self._drawn = time.monotonic()

    def _html(self) -> str:
        course, headline = self._course, self._course.headline
        so_far = f"round {course.round}/{headline.rounds}"
        line = " · ".join(filter(None, (so_far, course.left, course.figures())))
        return (
            f"<div><strong>{escape(headline.title)}</strong> "
            f'<progress value="{course.round}" max="{headline.rounds}"></progress> {escape(line)}</div>'
            + svg_line_chart({headline.metric: course.readings}, x_title="round", y_title=headline.metric)
        )
