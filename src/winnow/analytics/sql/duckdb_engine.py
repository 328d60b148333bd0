"""DuckDB in memory: it reaches no file and no address, and no statement changes its settings."""

import atexit
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache, lru_cache
from threading import Timer
from typing import Any

import duckdb
import pyarrow as arrow
from sqlglot import exp

from winnow.analytics.tables.declaration import ColumnDeclaration, TableDeclaration
from winnow.core import ConfigError, DataError
from winnow.core.untrusted_text import one_line

ROWS = "winnow_rows"
"""The rows as they are; a view with the table's own name has types and bounds."""
TYPES = {"number": "DOUBLE", "integer": "BIGINT", "text": "VARCHAR", "date": "TIMESTAMP", "boolean": "BOOLEAN"}
ARROW_TYPES = {
    "number": arrow.float64(),
    "integer": arrow.int64(),
    "text": arrow.string(),
    "date": arrow.timestamp("us"),
    "boolean": arrow.bool_(),
}
MEMORY = "2GB"
MAX_SECONDS = 300.0
"""That a connection may compute."""
MICROSECONDS_A_DAY = 86_400_000_000


@contextmanager
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection of its own: what is added to it is temporary, and nobody else sees it."""
    with closing(_database().cursor()) as opened:
        limit = Timer(MAX_SECONDS, opened.interrupt)
        limit.start()
        try:
            yield opened
        except duckdb.InterruptException:
            raise DataError(
                f"the statement took longer than {MAX_SECONDS:,.0f} seconds; ask for less at once"
            ) from None
        finally:
            limit.cancel()
            limit.join()  # its thread refers to the connection


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """Open the database that all connections share, until the process ends: it takes 15 ms, a connection 0.02 ms."""
    settings: dict[str, Any] = {
        "enable_external_access": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "python_enable_replacements": "false",
        "threads": "1",
        "memory_limit": MEMORY,
        "max_temp_directory_size": "0MB",
        "disabled_optimizers": "common_subexpressions",  # what stands in TRY twice would be computed outside of it
    }
    database = duckdb.connect(":memory:", config=settings)
    database.execute("SET lock_configuration = true")
    atexit.register(database.close)
    return database


def add_table(
    opened: duckdb.DuckDBPyConnection, name: str, declaration: TableDeclaration, rows: arrow.Table | None = None
) -> None:
    """The rows of a table (none, to check a statement), typed and clipped to bounds as they are declared."""
    columns = declaration.columns
    if rows is None:
        rows = arrow.table({each: arrow.array([], ARROW_TYPES[kind_of(column)]) for each, column in columns.items()})
    raw = f"{ROWS} {name}"
    opened.register(raw, rows.select(list(columns)))
    fields = ", ".join(f"{_clipped(each, column)} AS {quoted(asked_name(each))}" for each, column in columns.items())
    view = f"CREATE TEMP VIEW {quoted(name)} AS SELECT {fields} FROM {quoted(raw)}"  # noqa: S608 - names are quoted
    opened.execute(view)


def asked_name(name: str) -> str:
    """As statements write a column: DuckDB takes A for a, and Ä for another letter than ä."""
    return "".join(each if each.isascii() else each.lower() for each in name)


def kind_of(column: ColumnDeclaration) -> str:
    """A column of which nobody has a cell is text."""
    return column.known_type or "text"


def quoted(name: str) -> str:
    return exp.to_identifier(name, quoted=True).sql("duckdb")


def _clipped(name: str, column: ColumnDeclaration) -> str:
    kind, cell = kind_of(column), quoted(name)
    typed = f"CAST({cell} AS {TYPES[kind]})"
    if kind == "number":
        typed = f"CASE WHEN isnan({typed}) THEN NULL ELSE {typed} END"
    if column.bounds is None:
        return typed
    if kind == "date":
        low, high = (f"make_timestamp({round(days * MICROSECONDS_A_DAY)}::BIGINT)" for days in column.bounds)
    else:
        low, high = (f"CAST({bound!r} AS {TYPES[kind]})" for bound in column.bounds)
    return f"CASE WHEN {typed} < {low} THEN {low} WHEN {typed} > {high} THEN {high} ELSE {typed} END"


def described_types(opened: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    """DuckDB's types of a statement's columns; ConfigError where it does not accept it. The tables must be empty."""
    try:
        kinds = [str(kind) for _, kind, *_ in opened.execute(f"DESCRIBE {sql}").fetchall()]
    except duckdb.Error as error:
        raise ConfigError(f"the statement does not fit the table: {_first_line(error)}") from None
    return ["INTEGER" if kind.strip('"') == "NULL" else kind for kind in kinds]  # a literal NULL has no type


@lru_cache(maxsize=4096)
def type_over_nulls(expression: str, kinds: tuple[str, ...]) -> str | None:
    """DuckDB's type of an expression of columns o0, o1 and so on, of these types; None where it fails even if they are
    all NULL, which is computed here: what is wrong with a constant may show no earlier.
    """
    columns = ", ".join(f"UNNEST([CAST(NULL AS {kind})]) AS o{place}" for place, kind in enumerate(kinds))
    source = f" FROM (SELECT {columns})" if kinds else ""
    try:
        with connection() as opened:
            computed = opened.sql(f"SELECT ({expression}){source}")
            computed.to_arrow_table()
            kind = str(computed.types[0])
    except (duckdb.OutOfMemoryException, duckdb.FatalException) as error:  # it says nothing of the expression
        raise DataError(f"the statement cannot be checked: {_first_line(error)}") from None
    except duckdb.Error:
        return None
    return kind


def _first_line(error: duckdb.Error) -> str:
    """DuckDB's own line, without the name of its class of errors and the advice that follows."""
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return one_line(line.split("Error:", 1)[-1])[:200]
