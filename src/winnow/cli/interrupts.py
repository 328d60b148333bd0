"""What becomes of Ctrl-C: one line that says how to go on."""

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

NOTHING_DONE = "winnow: stopped before the run began"


@contextmanager
def interruptible(advice: Callable[[], str]) -> Iterator[None]:
    """Leave with this advice where the user interrupts."""
    try:
        yield
    except KeyboardInterrupt:
        print(advice(), file=sys.stderr)
        raise typer.Exit(130) from None


@contextmanager
def ended_like_an_interrupt() -> Iterator[None]:
    """A closed terminal (SIGHUP) or a kill (SIGTERM) is an interrupt too: what was started is cleaned up."""
    endings = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(each, signal.default_int_handler) for each in endings]
    try:
        yield
    finally:
        for each, handler in zip(endings, before, strict=True):
            signal.signal(each, handler)


def as_argument(path: Path) -> str:
    """The path as a word of a command, quoted, and never mistaken for a preset or an option."""
    anchored = path.is_absolute() or path.parts[:1] == (os.pardir,)
    return shlex.quote(str(path) if anchored else f"{os.curdir}{os.sep}{path}")
