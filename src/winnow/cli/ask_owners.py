"""What commands that put questions to owners have in common: their options, and the display while one waits."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from winnow.cli.interrupts import exit_on_interrupt

if TYPE_CHECKING:
    from rich.console import Console

    from winnow.analytics.question import Answer, Question
    from winnow.core import AnyEvent

MOST_TOLD = 2.0**53
"""Exchanges or bytes of one step that a server is believed."""
DISPLAY_AFTER = 2.0
"""Seconds without an answer after which progress is shown."""

FederationFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--in", metavar="FILE", help="A file that declares tables and simulates their owners; default: federation.toml."
    ),
]
PersonKit: TypeAlias = Annotated[
    Path | None, typer.Option("--kit", metavar="KIT", help="Your kit: ask the owners of a real federation instead.")
]
OwnersOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--owners", metavar="A,B", help="Only these owners (two may name a helper, too); all otherwise."),
]
FolderOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--folder", metavar="RUN", help="Keep the run in a folder; one that was interrupted goes on."),
]
EpsilonOption: TypeAlias = Annotated[
    float | None, typer.Option(metavar="E", help="Answer with noise, differentially private at this ε.")
]
DeltaOption: TypeAlias = Annotated[float | None, typer.Option(metavar="D", help="The δ of --epsilon; default: 1e-6.")]
ExplainOption: TypeAlias = Annotated[
    bool, typer.Option("--explain", help="Ask nothing; say which steps it takes, who learns what, and its cost.")
]


def names(listed: str | None) -> tuple[str, ...]:
    """The names in a list with commas."""
    return tuple(name.strip() for name in (listed or "").split(",") if name.strip())


class CountedSteps:
    """What the steps of a question cost."""

    def __init__(self) -> None:
        self.exchanges, self.sent_bytes = 0, 0.0

    def add(self, event: "AnyEvent") -> None:
        from winnow.analytics.workflow import MESSAGES
        from winnow.core import RoundFinished

        if isinstance(event, RoundFinished):
            exchanges = event.metrics.get(MESSAGES, {}).get("exchanges", 0)
            if 0 <= exchanges <= MOST_TOLD and 0 <= event.cost.sent_bytes <= MOST_TOLD:  # a server may say anything
                self.exchanges += int(exchanges)
                self.sent_bytes += event.cost.sent_bytes

    def text(self, seconds: float) -> str:
        """An answer that a folder had already took no steps."""
        from winnow.core.join_names import counted
        from winnow.report.number_format import size_text

        if not self.exchanges:
            return f"{seconds:.1f} s"
        return f"{counted(self.exchanges, 'exchange')}, {seconds:.1f} s, {size_text(self.sent_bytes)}"


def ask(
    question: "Question",
    *,
    federation: Path | None,
    kit: Path | None,
    owners: str | None,
    folder: Path | None,
    on_match: Callable[[str, list[str]], object] = lambda owner, keys: None,
    on_files: Callable[[str, Mapping[str, str]], object] = lambda owner, files: None,
    on_event: "Callable[[AnyEvent], object]" = lambda event: None,
) -> "Answer":
    """The answer; meanwhile standard error says how far it is."""
    from winnow import questions
    from winnow.cli.console import say, stderr_console

    console = stderr_console()
    with exit_on_interrupt(lambda: _advice(folder)), _progress(console) as show:

        def happened(event: "AnyEvent") -> None:
            show(event)
            on_event(event)

        return questions.ask(
            question,
            federation=federation,
            kit=kit,
            owners=names(owners),
            folder=folder,
            on_event=happened,
            on_line=partial(say, console=console),
            on_match=on_match,
            on_files=on_files,
        )


def _advice(folder: Path | None) -> str:
    if folder is None:
        return "winnow: stopped; nothing was kept"
    return "winnow: stopped; the same command goes on where it stopped"


@contextmanager
def _progress(console: "Console") -> "Iterator[Callable[[AnyEvent], None]]":
    """A line on standard error that says which step was last answered, where somebody looks at it."""
    from threading import Timer

    from rich.status import Status

    from winnow.core import Released, RoundFinished
    from winnow.core.untrusted_text import printable

    steps = 0
    status = Status("asking the owners", console=console)
    begin = Timer(DISPLAY_AFTER, status.start)  # a first step may take longer than that

    def on_event(event: "AnyEvent") -> None:
        nonlocal steps
        steps += isinstance(event, RoundFinished)
        if isinstance(event, Released):
            status.update(f"step {steps + 1}: {printable(event.step)}")

    if sys.stderr.isatty():
        begin.start()
    try:
        yield on_event
    finally:
        begin.cancel()
        if begin.is_alive():  # it may be starting the display
            begin.join()
        status.stop()
