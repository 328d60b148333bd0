"""Measure how much of their time the tests spend waiting.

A test waits while neither its process nor one below it runs or is ready to run. The kernel counts the time that a
process is ready and has no core (`schedstat`), but only for its main thread, so a little waiting is counted too much.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

_spent = {"wall": 0.0, "cpu": 0.0, "waiting": 0.0}
"""Seconds of all tests: of this process, or of all workers in their controller."""
_used_before: list[tuple[float, float, dict[str, float]]] = []
"""What `_used` returned after the last test."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    begun, cpu_before, delays_before = _used_before.pop() if _used_before else _used()
    try:
        return (yield)
    finally:
        ended, cpu, delays = used = _used()
        _used_before.append(used)
        delay = sum(seconds - delays_before.get(process, 0.0) for process, seconds in delays.items())
        busy = max(0.0, cpu - cpu_before)
        _add(wall=ended - begun, cpu=busy, waiting=max(0.0, ended - begun - busy - delay))


def _add(**seconds: float) -> None:
    for name, more in seconds.items():
        _spent[name] += more


def _used() -> tuple[float, float, dict[str, float]]:
    """Return the time, the processor time of this process and those below it, and how long each had no core."""
    delays, unseen, cpu = dict[str, float](), ["self"], sum(os.times()[:4])
    while unseen:
        process = Path("/proc", unseen.pop())
        with suppress(OSError):  # the process has ended
            delays[process.name] = int((process / "schedstat").read_text().split()[1]) / 1e9
            if process.name != "self":
                ticks = (process / "stat").read_text().rpartition(")")[2].split()[11:15]
                cpu += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
            unseen += [child for file in process.glob("task/*/children") for child in file.read_text().split()]
    return time.monotonic(), cpu, delays


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["waiting"] = _spent


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _add(**getattr(node, "workeroutput", {}).get("waiting", {}))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    yield
    if wall := _spent["wall"]:
        share, without = _spent["waiting"] / wall, 1 - _spent["cpu"] / wall
        terminalreporter.write_line(f"waiting: {share:.0%} of {wall:.0f} s ({without:.0%} without processor time)")
