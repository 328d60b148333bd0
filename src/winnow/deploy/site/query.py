"""The rows of a database query, written to a file once a job: all of the job sees the same rows.

This runs in a process of its own, which knows the database and ends before any of a job's code begins. So a job's
process needs no network and never holds a password. Run as `python -m winnow.deploy.site.query`.
"""

import csv
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from winnow.core.errors import DataError

PATIENCE = 3600.0
ROWS_AT_ONCE = 1000


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    query: str
    target: str


def fetch_rows(name: str, url: str, query: str, target: Path) -> None:
    """Have the rows in the file, by a process of their own. They stay as they are once they are there."""
    if target.exists():
        return
    wanted = msgspec.json.encode(Wanted(url=url, query=query, target=str(target)))
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-m", "winnow.deploy.site.query"],
            input=wanted,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"data {name}: the query took longer than {PATIENCE:g} seconds") from None
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
        raise DataError(f"data {name}: the query failed: {last[0]}")


def write_rows(wanted: Wanted) -> None:
    """Run the query in a transaction that can only read."""
    from sqlalchemy import create_engine, event, text  # noqa: PLC0415 - the agent must not load it
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    engine = create_engine(wanted.url, poolclass=NullPool)
    options: dict[str, Any] = {"stream_results": True, "yield_per": ROWS_AT_ONCE}
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA query_only = ON"))
    elif engine.dialect.name == "postgresql":
        options["postgresql_readonly"] = True
    else:
        raise DataError(f"databases of {engine.dialect.name} are not read; SQLite and PostgreSQL are")
    target = Path(wanted.target)
    temporary = target.with_name(target.name + ".part")
    with engine.connect().execution_options(**options) as connection, temporary.open("w", newline="") as file:
        rows = connection.execute(text(wanted.query))
        write_table(file, list(rows.keys()), rows)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(target)


def write_table(file: Any, columns: Sequence[str], rows: Any) -> None:
    writer = csv.writer(file)
    writer.writerow(columns)
    writer.writerows(rows)


def main() -> None:
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=Wanted)
    try:
        write_rows(wanted)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}")


if __name__ == "__main__":
    main()
