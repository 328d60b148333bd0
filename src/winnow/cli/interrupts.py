"""What becomes of Ctrl-C: one line that says how to go on."""

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import typer

STOPPED_BEFORE_START = "winnow: stopped before the run started"


@contextmanager
def exit_on_interrupt(advice: Callable[[], str]) -> Iterator[None]:
    """Leave with this advice where the user interrupts."""
    try:
        yield
    except KeyboardInterrupt:
        print(advice(), file=sys.stderr)
        raise typer.Exit(130) from None


@contextmanager
def single_interrupt() -> Iterator[None]:
    """Interrupt at Ctrl-C, a closed terminal (SIGHUP) or a kill (SIGTERM). After the first one the process ignores all
    three, so that nothing disturbs it while it leaves.
    """
    endings = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    interrupted = False

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        for each in endings:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = [signal.signal(each, interrupt) for each in endings]
    try:
        yield
    finally:
        if not interrupted:
            for each, handler in zip(endings, before, strict=True):
                signal.signal(each, handler)


def shell_argument(path: Path) -> str:
    """The path as a word of a command, quoted, and never mistaken for a preset or an option."""
    anchored = path.is_absolute() or path.parts[:1] == (os.pardir,)
    return shlex.quote(str(path) if anchored else f"{os.curdir}{os.sep}{path}")
