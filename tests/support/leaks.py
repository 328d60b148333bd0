"""Fail the test that leaks: what it opened must be closed when it ends, without help from the garbage collector.

Open descriptors, child processes and threads are compared before and after each test, and before and after each
module for what its fixtures open. Whatever remains after `GRACE` seconds fails that test by name; garbage is then
collected and a second look says whether the collector would have closed it.

A server that a fixture of the module holds opens connections, threads and files while a test runs. Where a fixture of
the module holds something open, the module is failed for what remains after it, and names the test that opened it.
The test itself is failed there for what it left open and unreferenced, which cannot be the fixture's.
"""

import gc
import io
import logging
import os
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pyarrow.csv
import pytest

GRACE = 5.0
"""Seconds in which a process or thread that was told to stop may do so."""
EXEMPT_DESCRIPTORS = ("anon_inode:[eventpoll]", "anon_inode:[eventfd]", "/dev/urandom", "/dev/null")
"""Opened once per process by gRPC, asyncio's policy or numerical libraries, and kept."""
EXEMPT_THREADS = ("pydevd", "IPythonHistorySavingThread", "tqdm_monitor", "execnet")
"""Threads of libraries that live as long as the process."""
QUESTIONS: dict[str, Callable[[Any], object]] = {
    "sqlite3.Connection": lambda connection: connection.total_changes,
    "mmap.mmap": len,
    "grpc._channel.Channel": lambda channel: channel._channel.check_connectivity_state(False),
}
"""Types that the collector closes without a ResourceWarning (sqlite3 before Python 3.13), each with a question that
raises an exception if the object is closed."""

_of_the_session: set[str] = set()
"""What fixtures of the session have opened."""
_sharing: set[str] = set()
"""Fixtures that hold something open for several tests of the module at hand."""
_opened_by: dict[str, str] = {}
"""The test that opened a key which may belong to a fixture."""
_reported: set[str] = set()
"""Keys that the failure of a test has reported; the failure of its module does not repeat them."""

Opened = dict[str, str]
"""Descriptions by key. A key may return: the kernel reuses the numbers of processes and threads."""


def pytest_configure(config: pytest.Config) -> None:
    """Give this process a temporary folder of its own, so that what stays there can be compared."""
    os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.gettempdir()  # where `tmp_path` is, as without this plug-in
    # torch keeps compiled kernels from one run to the next
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}")
    folder = tempfile.mkdtemp(prefix="wn-")  # short: the paths of sockets may not be long
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    _open_what_libraries_keep()


def _open_what_libraries_keep() -> None:
    """Open now what Python and pyarrow open at first use and keep: the first test that needs it does not leak it."""
    resource_tracker.ensure_running()  # a process, and a pipe to it, for all that multiprocessing spawns
    pyarrow.csv.read_csv(io.BytesIO(b"a\n1\n"))  # a pipe by which its signal handlers wake its threads


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object],
) -> Generator[None, object, object]:
    """What a fixture of the session opens is open until the session ends, whichever test asks for it first."""
    if fixturedef.scope == "function":
        return (yield)
    before = opened()
    try:
        return (yield)
    finally:
        new = opened().keys() - before.keys()
        if fixturedef.scope == "session":
            _of_the_session.update(new)
        elif new:
            _sharing.add(fixturedef.argname)


@pytest.fixture(autouse=True)
def _no_leaks(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield from _compared(request.node.nodeid, caplog, of_module=False)


@pytest.fixture(autouse=True, scope="module")
def _no_leaks_by_module(request: pytest.FixtureRequest) -> Iterator[None]:
    _sharing.clear()
    yield from _compared(f"{request.node.nodeid} (fixtures of the module)", None, of_module=True)
    _sharing.clear()


def _compared(name: str, log: pytest.LogCaptureFixture | None, *, of_module: bool) -> Iterator[None]:
    before = opened()
    yield
    if log is not None:
        _forget_errors([*log.get_records("setup"), *log.get_records("call")])
    if _sharing and not of_module:
        if new := opened().keys() - before.keys() - _opened_by.keys():
            _opened_by.update(dict.fromkeys(new, name))
            if left := _left_to_the_collector():
                pytest.fail(f"{name} leaks:\n" + "\n".join(left), pytrace=False)
        return
    remaining = _remaining(before)
    if not remaining:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # this failure says it
        gc.collect()
    still = opened()
    lines = [
        f"  {what}"
        + (f", open after {_opened_by[key]}" if key in _opened_by else "")
        + ("" if key in still else " (closed by the garbage collector)")
        for key, what in remaining.items()
    ]
    _reported.update(remaining)
    pytest.fail(f"{name} leaks:\n" + "\n".join(sorted(lines)), pytrace=False)


def _forget_errors(records: Iterable[logging.LogRecord]) -> None:
    """Drop the errors that were logged: pytest keeps the records, and with them all that frames refer to."""
    for record in records:
        record.args = None
        record.exc_info = None


def _left_to_the_collector() -> list[str]:
    """Collect garbage, and describe each object that was open until then.

    Files, sockets, processes and event loops give a ResourceWarning when they are finalized; `QUESTIONS` finds the
    types that do not. Only garbage is asked, so what closes at the same time in a thread is not reported.
    """
    flags = gc.get_debug()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        try:
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            found = [repr(each) for each in gc.garbage if _was_open(each)]
        finally:
            gc.set_debug(flags)
            gc.garbage.clear()
            gc.collect()
    found += [str(each.message) for each in warned if issubclass(each.category, ResourceWarning)]
    return sorted(f"  {each} (closed only by the garbage collector)" for each in found)


def _was_open(garbage: object) -> bool:
    kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(garbage).__mro__]
    questions = [QUESTIONS[kind] for kind in kinds if kind in QUESTIONS]
    try:
        for ask in questions:
            ask(garbage)
    except Exception as error:
        return "deallocated" in str(error)  # a gRPC channel closes when it is finalized, and says so
    return bool(questions)


def _remaining(before: Opened) -> Opened:
    """What is open now and was not before, once the grace is over."""
    until = time.monotonic() + GRACE
    known = before.keys() | _reported | _of_the_session
    while new := {key: what for key, what in opened().items() if key not in known}:
        if time.monotonic() >= until:
            break
        time.sleep(0.02)
    return new


def opened() -> Opened:
    """Descriptors, child processes, threads and temporary files of this process."""
    return _descriptors() | _children() | _threads() | _temporary_files()


def _descriptors() -> Opened:
    found = {}
    for each in Path("/proc/self/fd").iterdir():
        try:
            target = str(each.readlink())
        except OSError:  # the listing's own
            continue
        if int(each.name) > 2 and not target.startswith(EXEMPT_DESCRIPTORS):  # pytest redirects the first three
            found[f"descriptor {each.name} {target}"] = f"descriptor {each.name}: {target}"
    return found


def _children() -> Opened:
    """Child processes, including those that have exited and that this process has not waited for."""
    found = {}
    for listing in Path("/proc/self/task").glob("*/children"):
        try:
            for process in listing.read_text().split():
                command = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[f"process {process}"] = f"process {process}: {command.strip()[:120] or '(exited)'}"
        except OSError:  # the thread or the process is gone meanwhile
            continue
    return found


def _temporary_files() -> Opened:
    return {f"temporary {path}": f"temporary file {path}" for path in _temporary_folder().iterdir()}


def _temporary_folder() -> Path:
    return Path(tempfile.gettempdir())


def _threads() -> Opened:
    return {
        f"thread {thread.ident} {thread.name}": f"thread {thread.name!r}"
        for thread in threading.enumerate()
        if not thread.name.startswith(EXEMPT_THREADS)
    }
