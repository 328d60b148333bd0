"""Declared columns of a table in a DuckDB file or a PostgreSQL database, read-only."""

from collections.abc import Sequence
from pathlib import Path
from threading import Timer

import pyarrow as arrow

from winnow.analytics.tables.read_files import check_names
from winnow.analytics.tables.read_limit import check_rows, most_rows
from winnow.analytics.tables.read_postgresql import identifier, open_postgresql, refuse_table, schema_and_name
from winnow.analytics.tables.source import DUCKDB
from winnow.core import DataError
from winnow.core.untrusted_text import one_line

MAX_SECONDS = 3600.0
"""A view may compute for ever."""
MEMORY = "8GB"


def read_database(url: str, table: str, columns: Sequence[str]) -> arrow.Table:
    """These columns, in this order."""
    reader = _read_duckdb if url.startswith(DUCKDB) else _read_postgresql
    rows = reader(url, table, columns)
    if not rows.num_rows:
        raise DataError(f"table {one_line(table)} has no rows")
    return rows


def _read_duckdb(url: str, table: str, columns: Sequence[str]) -> arrow.Table:
    """From an in-memory database with the file attached read-only: a view in the file can reach nothing else."""
    import duckdb  # noqa: PLC0415 - an extra

    path = Path(url.removeprefix(DUCKDB))
    where = f"{one_line(path)}, table {one_line(table)}"
    if not path.is_file():
        raise DataError(f"file not found: {one_line(path)}")
    schema, name = schema_and_name(table, "main")
    with duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false"}) as database:
        try:
            database.execute(f"ATTACH {_literal(str(path))} AS source (READ_ONLY)")
        except duckdb.Error as error:
            raise DataError(f"{one_line(path)} is not a readable DuckDB file") from error
        database.execute(f"SET memory_limit = '{MEMORY}'")
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")
        present = database.execute(
            "SELECT table_schema, table_name, list(column_name ORDER BY ordinal_position)"
            " FROM information_schema.columns WHERE table_catalog = 'source' GROUP BY ALL"
        ).fetchall()
        tables = {(each[0], each[1]): each[2] for each in present}
        if (schema, name) not in tables:
            refuse_table(one_line(path), table, [n if s == "main" else f"{s}.{n}" for s, n in tables])
        check_names(tables[schema, name], columns, where)
        wanted = ", ".join(map(identifier, columns))
        timer = Timer(MAX_SECONDS, database.interrupt)
        timer.start()
        try:
            rows = database.sql(f"SELECT {wanted} FROM source.{identifier(schema)}.{identifier(name)}")  # noqa: S608
            found = rows.limit(most_rows(len(columns)) + 1).to_arrow_table()
        except (duckdb.Error, arrow.ArrowException) as error:
            raise DataError(f"{where} cannot be read ({type(error).__name__})") from error
        finally:
            timer.cancel()
            timer.join()  # its thread refers to the connection
    check_rows(found.num_rows, len(columns), where)
    return found


def _read_postgresql(url: str, table: str, columns: Sequence[str]) -> arrow.Table:
    with open_postgresql(url, table, columns) as opened:
        return opened.fetch(columns, f"FROM {opened.quoted}")


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
