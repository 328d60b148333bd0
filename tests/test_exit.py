"""A process ends without a complaint: what was opened is closed, and Python frees what was loaded.

DuckDB and triton count their objects and complain on standard error, after the last line of Python, of those that live.
"""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from command_line import write_tiny

WINNOW = [sys.executable, "-m", "winnow.cli"]
TABLE = """
[tables.stays]
file = "stays.csv"
owner = "hospital"
[tables.stays.columns]
age = { level = "protected", bounds = [0, 110] }
days = { level = "protected", bounds = [0, 60] }
"""
INTERRUPTED_PAGES = """
import sys, duckdb
from winnow.web.serve import serve_pages
serve_pages([], host="127.0.0.1", port=0, on_ready=lambda address: sys.exit())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [f"{owner},{age},{2 + age / 10}" for owner in ("north", "south") for age in range(20, 60)]
    (tmp_path / "stays.csv").write_text("\n".join(["hospital,age,days", *rows]) + "\n")
    (tmp_path / "federation.toml").write_text(TABLE)
    return tmp_path


def stderr_of(command: list[str], folder: Path, code: int = 0) -> str:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stderr
    return ended.stderr


def test_a_run_and_its_report_end_in_silence(folder: Path) -> None:
    write_tiny(folder)
    assert stderr_of([*WINNOW, "run", "tiny.toml", "--out", "run", "--quiet"], folder) == ""
    assert stderr_of([*WINNOW, "report", "run", "--out", "report.html"], folder) == ""


def test_a_query_ends_with_its_own_line(folder: Path) -> None:
    (line,) = stderr_of([*WINNOW, "query", "SELECT AVG(age) FROM stays"], folder).splitlines()
    assert line.startswith("2 owners, ")


def test_a_refused_query_ends_with_its_own_line(folder: Path) -> None:
    (line,) = stderr_of([*WINNOW, "query", "SELECT AVG(agee) FROM stays"], folder, code=2).splitlines()
    assert line.startswith("winnow: error: there is no column 'agee'")


def test_a_fit_ends_in_silence(folder: Path) -> None:
    assert stderr_of([*WINNOW, "fit", "linear", "days ~ age"], folder) == ""


def test_a_script_that_asks_and_keeps_an_error_ends_in_silence(folder: Path) -> None:
    script = """
import winnow
answer = winnow.query("SELECT AVG(age) AS mean FROM stays")
try:
    winnow.query("SELECT AVG(agee) FROM stays")
except winnow.WinnowError as error:
    kept = error
"""
    assert stderr_of([sys.executable, "-c", script], folder) == ""


def test_pages_that_are_interrupted_end_in_silence(folder: Path) -> None:
    assert stderr_of([sys.executable, "-c", INTERRUPTED_PAGES], folder) == ""


def test_a_closed_connection_to_duckdb_has_no_thread() -> None:
    from winnow.analytics.sql.duckdb_engine import connection

    before = set(threading.enumerate())
    for _ in range(20):
        with connection():
            pass
        assert set(threading.enumerate()) <= before
