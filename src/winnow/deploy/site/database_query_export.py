"""The rows of a database query or table, written to a file once a job: all of the job sees the same rows.

This runs in a process of its own, which knows the database and ends before any of a job's code begins. So a job's
process needs no network and never holds a password. Run as `python -m winnow.deploy.site.database_query_export`.
"""

import csv
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from winnow.core.errors import DataError
from winnow.deploy.sandbox.seccomp import die_with_parent
from winnow.deploy.wire.errors import one_line

if TYPE_CHECKING:
    import pyarrow as arrow

log = logging.getLogger(__name__)

QUERY_TIMEOUT = 3600.0
POLL_SECONDS = 0.2
FETCH_ROWS = 1000


class DatabaseQuery(msgspec.Struct, frozen=True, kw_only=True, tag="query"):
    """Rows for training, as CSV."""

    url: str
    query: str
    target: str


class DatabaseTable(msgspec.Struct, frozen=True, kw_only=True, tag="table"):
    """Declared columns of a table, with their types, as Parquet; of a question in SQL the rows that it needs."""

    name: str
    section: dict[str, Any]
    """Of the table, as `site.toml` has it."""
    question: dict[str, Any]
    target: str


def fetch_rows(name: str, url: str, query: str, target: Path, stopped: Callable[[], bool] = lambda: False) -> None:
    """Write the rows of a query to the file. A file that exists stays as it is."""
    if not target.exists():
        _fetch(f"data {name}", DatabaseQuery(url=url, query=query, target=str(target)), stopped)


def fetch_table(
    name: str,
    section: dict[str, Any],
    question: dict[str, Any],
    target: Path,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Write what a question may need of a table to the file. A file that exists stays as it is."""
    if not target.exists():
        wanted = DatabaseTable(name=name, section=section, question=question, target=str(target))
        _fetch(f"table {name}", wanted, stopped)


def _fetch(name: str, wanted: DatabaseQuery | DatabaseTable, stopped: Callable[[], bool]) -> None:
    """By a process of its own. A database's errors may quote the data: they go to the site's own log.

    `stopped` cancels the query.
    """
    with subprocess.Popen(
        [sys.executable, "-I", "-m", "winnow.deploy.site.database_query_export"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            errors = _errors(process, wanted, stopped)
        finally:
            process.kill()
    if errors is None:
        raise DataError(f"{name}: the query was cancelled, or took longer than {QUERY_TIMEOUT:g} seconds")
    if process.returncode != 0:
        log.warning("%s: the query failed: %s", name, one_line((errors.strip().splitlines() or ["no reason"])[-1]))
        raise DataError(f"{name}: the query failed; see the site's log")


def _errors(
    process: "subprocess.Popen[bytes]", wanted: DatabaseQuery | DatabaseTable, stopped: Callable[[], bool]
) -> str | None:
    """What the process wrote to standard error, once it ended; None if it does not end."""
    until = time.monotonic() + QUERY_TIMEOUT
    given: bytes | None = msgspec.json.encode(wanted)
    while time.monotonic() < until and not stopped():
        try:
            _, errors = process.communicate(given, timeout=POLL_SECONDS)
            return errors.decode(errors="replace")
        except subprocess.TimeoutExpired:
            given = None  # it has it already, or is getting it
    return None


def write_rows(wanted: DatabaseQuery) -> None:
    """Run the query in a transaction that can only read."""
    from sqlalchemy import create_engine, event, text  # noqa: PLC0415 - the agent must not load it
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    engine = create_engine(wanted.url, poolclass=NullPool)
    options: dict[str, Any] = {"stream_results": True, "yield_per": FETCH_ROWS}
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA query_only = ON"))
    elif engine.dialect.name == "postgresql":
        options["postgresql_readonly"] = True
    else:
        raise DataError(f"{engine.dialect.name} is not supported; use SQLite or PostgreSQL")
    target = Path(wanted.target)
    temporary = target.with_name(target.name + ".part")
    with engine.connect().execution_options(**options) as connection, temporary.open("w", newline="") as file:
        rows = connection.execute(text(wanted.query))
        write_csv(file, list(rows.keys()), rows)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(target)


def write_table(wanted: DatabaseTable) -> None:
    """Read the table in a transaction that can only read, and nothing but the declared columns."""
    from pyarrow import parquet  # noqa: PLC0415 - the agent must not load it

    rows = _table_rows(wanted)
    target = Path(wanted.target)
    temporary = target.with_name(target.name + ".part")
    with temporary.open("wb") as file:
        parquet.write_table(rows, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(target)


def _table_rows(wanted: DatabaseTable) -> "arrow.Table":
    from winnow.analytics.tables.read_databases import read_database  # noqa: PLC0415
    from winnow.analytics.tables.source import POSTGRESQL  # noqa: PLC0415

    url, table = wanted.section["url"], wanted.section["table"]
    sql, noisy = wanted.question.get("sql"), wanted.question.get("epsilon") is not None
    if sql is not None and url.startswith(POSTGRESQL):
        from winnow.analytics.sql.postgres_engine import select_rows  # noqa: PLC0415
        from winnow.analytics.tables.parse_table_section import parse_table  # noqa: PLC0415

        declaration, _ = parse_table(wanted.section, f"table {wanted.name}:")
        chosen = select_rows(url, table, declaration, sql, wanted.name, noisy=noisy)
        if chosen is not None:
            return chosen
    return read_database(url, table, list(wanted.section["columns"]))


def write_csv(file: Any, columns: Sequence[str], rows: Any) -> None:
    writer = csv.writer(file)
    writer.writerow(columns)
    writer.writerows(rows)


def main() -> None:
    die_with_parent()
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=DatabaseQuery | DatabaseTable)
    try:
        if isinstance(wanted, DatabaseTable):
            write_table(wanted)
        else:
            write_rows(wanted)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}")


if __name__ == "__main__":
    main()
