"""Limit the time of every test, and show what all threads do in one that hangs.

The limit is that of pytest-timeout: 300 s, 3600 s for a slow test, or the test's own `@pytest.mark.timeout`. The
failure shows the stacks of all threads, also those of a worker process. Fixtures have the same limit to end. A test
that cannot be interrupted ends its process `EXTRA` seconds later, with the stacks on standard error.
"""

import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import IO, Any

import pytest
from pytest_timeout import is_debugging

SLOW = 3600.0
EXTRA = 60.0

STDERR: pytest.StashKey[IO[str]] = pytest.StashKey()
LIMIT: pytest.StashKey[float] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the standard error that is not captured."""
    file = os.fdopen(os.dup(2), "w")
    config.stash[STDERR] = file
    config.add_cleanup(file.close)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give slow tests a longer limit."""
    if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
        item.add_marker(pytest.mark.timeout(SLOW))


def pytest_timeout_set_timer(item: Any, settings: Any) -> bool:
    """Start the limit in the way of this module."""
    item.stash[LIMIT] = settings.timeout
    item.cancel_timeout = _stop
    _start(item)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Start the limit again: a test that has failed has stopped it."""
    if LIMIT in item.stash:
        _start(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Let the process live once the test and its fixtures have ended."""
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _start(item: pytest.Item) -> None:
    limit = item.stash[LIMIT]

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if not is_debugging():
            pytest.fail(f"{item.nodeid} exceeded its time limit of {limit:g} s\n{stacks()}", pytrace=False)

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit)
    faulthandler.dump_traceback_later(limit + EXTRA, exit=True, file=item.config.stash[STDERR])


def _stop() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def stacks() -> str:
    """Return the stacks of all threads."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(ident, '(not from Python)')!r}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
