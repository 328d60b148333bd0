"""Say what a test needs from the machine, and count what was skipped for want of it.

A test is skipped only through one of the needs below. With `CI=true` only the needs that `in_ci` marks may be
missing; any other skip fails the run. A skip for any other reason fails every run.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

PREFIX = "needs "


@dataclass(frozen=True, kw_only=True)
class Need:
    """Something that a machine may not have, and how to get it."""

    what: str
    remedy: str
    in_ci: bool = False
    """Whether a machine of CI may be without it."""

    def unless(self, present: bool) -> pytest.MarkDecorator:
        """Return a mark that skips a test unless this is present."""
        return pytest.mark.skipif(not present, reason=PREFIX + self.what)

    def skip(self, detail: str = "") -> NoReturn:
        """Skip the running test."""
        pytest.skip(PREFIX + self.what + (f": {detail}" if detail else ""))

    def explains(self, reason: str) -> bool:
        """Return whether a test that was skipped for this reason needs this."""
        return reason == PREFIX + self.what or reason.startswith(f"{PREFIX}{self.what}: ")


POSTGRES = Need(what="PostgreSQL", remedy="apt install postgresql")
BROWSER = Need(what="Chromium", remedy="apt install chromium")
DATA = Need(what="data sets", remedy="set WINNOW_DATA to a folder that has them")
SYSTEMD = Need(what="systemd", remedy="apt install systemd")
SANDBOX = Need(what="a sandbox", remedy="use Linux 6.2 or newer with Landlock")
MOUNTS = Need(what="permission to mount", remedy="run as root")
PORT_RANGES = Need(what="port ranges per socket", remedy="use Linux 6.3 or newer")
PROC = Need(what="/proc", remedy="use Linux")
GPU = Need(what="a GPU", remedy="use a machine with CUDA", in_ci=True)
PROCESSOR = Need(what="another processor", remedy="use another machine", in_ci=True)

NEEDS = (POSTGRES, BROWSER, DATA, SYSTEMD, SANDBOX, MOUNTS, PORT_RANGES, PROC, GPU, PROCESSOR)


def data_set(folder: Path, name: str) -> Path:
    """Return the place of a data set in the data folder; skip the test if it is missing."""
    place = folder / name
    if not place.exists():
        DATA.skip(f"{place} is missing")
    return place


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Reject the skip of a whole module: a run on several workers would not report it."""
    if report.skipped:
        raise pytest.UsageError(f"{report.nodeid}: skip each test with a mark of tests/support/needs.py")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if a test was skipped that must not be."""
    if forbidden(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Iterator[None]:
    """End the summary with one line on what was skipped, and a line per test that must not be skipped."""
    yield
    counts = Counter(need for reason in _skipped(config).values() if (need := need_of(reason)))
    if counts:
        parts = [f"{count} need {need.what} ({need.remedy})" for need, count in counts.most_common()]
        terminalreporter.write_line("skipped: " + ", ".join(parts))
    for line in forbidden(config):
        terminalreporter.write_line(line, red=True)


def forbidden(config: pytest.Config) -> list[str]:
    """Return a line for each test that was skipped and must not be."""
    in_ci = os.environ.get("CI") == "true"
    lines = []
    for test, reason in _skipped(config).items():
        need = need_of(reason)
        if need is None:
            lines.append(f"{test} must not be skipped: '{reason}' is not a need of tests/support/needs.py")
        elif in_ci and not need.in_ci:
            lines.append(f"{test} must not be skipped in CI: {reason} ({need.remedy})")
    return lines


def need_of(reason: str) -> Need | None:
    """Return the need behind the reason of a skip."""
    return next((need for need in NEEDS if need.explains(reason)), None)


def _skipped(config: pytest.Config) -> dict[str, str]:
    """Return the reason for each skipped test; a worker of a distributed run leaves this to its controller."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return {}
    reports = [report for report in reporter.stats.get("skipped", []) if isinstance(report.longrepr, tuple)]
    return {report.nodeid: report.longrepr[2].removeprefix("Skipped: ") for report in reports}
