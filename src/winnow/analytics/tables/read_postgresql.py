"""A table of a PostgreSQL database, in a transaction that can only read and ends in time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from typing import Any, NoReturn, TypeAlias
from warnings import catch_warnings

import pyarrow as arrow

from winnow.analytics.tables.read_files import check_names
from winnow.analytics.tables.read_limit import check_rows
from winnow.core import DataError, suggest
from winnow.core.installed_package import install_command
from winnow.core.untrusted_text import one_line

FETCH_ROWS = 20_000
LIMITS = {
    "statement_timeout": "3600s",
    "lock_timeout": "60s",
    "work_mem": "64MB",
    "max_parallel_workers_per_gather": "0",
    "standard_conforming_strings": "on",
    "timezone": "UTC",
}
"""For this transaction alone."""

Reader: TypeAlias = Callable[[list[Any]], arrow.Array]


@dataclass(frozen=True, kw_only=True)
class PostgresTable:
    """An open table; what is executed is written by this package, and never comes from another party."""

    connection: Any
    schema: str | None
    name: str
    types: Mapping[str, Any]
    """SQLAlchemy's, by column."""
    where: str

    @property
    def quoted(self) -> str:
        return ".".join(identifier(each) for each in (self.schema, self.name) if each)

    @property
    def encoding(self) -> str:
        return str(self.connection.exec_driver_sql("SHOW server_encoding").scalar())

    def has_rows(self) -> bool:
        return self.connection.exec_driver_sql(f"SELECT 1 FROM {self.quoted} LIMIT 1").first() is not None  # noqa: S608

    def fetch(self, columns: Sequence[str], rest: str) -> arrow.Table:
        """SELECT of these columns, and how it goes on."""
        readers = [_reader(self.types[each], each, self.where) for each in columns]
        wanted = ", ".join(map(identifier, columns)) or "1"
        options = {"stream_results": True, "yield_per": FETCH_ROWS, "no_parameters": True}
        rows = iter(self.connection.exec_driver_sql(f"SELECT {wanted} {rest}", execution_options=options))
        count, chunks = 0, []
        for batch in iter(lambda: list(islice(rows, FETCH_ROWS)), []):
            count += len(batch)
            check_rows(count, len(columns), self.where)
            chunks.append(self._chunk(batch, readers, columns))
        if not columns:
            return arrow.table({"": arrow.nulls(count)})
        empty = arrow.Table.from_arrays([read([]) for read in readers], names=list(columns))
        return arrow.concat_tables([empty, *chunks])

    def _chunk(self, batch: list[Any], readers: Sequence[Reader], columns: Sequence[str]) -> arrow.Table:
        try:
            cells = [read(list(each)) for read, each in zip(readers, zip(*batch, strict=True), strict=bool(columns))]
        except (arrow.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise DataError(f"{self.where}: cells are not of the types that their columns have") from error
        return arrow.Table.from_arrays(cells, names=list(columns))


@contextmanager
def open_postgresql(url: str, table: str, columns: Sequence[str]) -> Iterator[PostgresTable]:
    """The table, which has these columns; whatever the database says becomes one line that quotes no cell."""
    if find_spec("sqlalchemy") is None or find_spec("psycopg") is None:
        raise DataError(f"PostgreSQL needs SQLAlchemy and psycopg: {install_command('deploy')}")
    from sqlalchemy import create_engine, inspect, make_url  # noqa: PLC0415 - an extra
    from sqlalchemy.exc import SAWarning, SQLAlchemyError  # noqa: PLC0415
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    try:
        address = make_url(url)
        place = f"{address.host or 'localhost'}/{address.database or ''}"
        # a database without an encoding returns bytes, of which those that are no UTF-8 are refused
        engine = create_engine(address, poolclass=NullPool, connect_args={"client_encoding": "utf8"})
        schema, name = schema_and_name(table, None)
        with engine.connect().execution_options(postgresql_readonly=True) as connection:
            for setting, value in LIMITS.items():
                connection.exec_driver_sql(f"SET LOCAL {setting} = '{value}'")
            inspector = inspect(connection)
            if not inspector.has_table(name, schema):
                views = inspector.get_view_names(schema)
                prefix = f"{schema}." if schema else ""
                refuse_table(place, table, [prefix + each for each in (*inspector.get_table_names(schema), *views)])
            with catch_warnings(action="ignore", category=SAWarning):  # types that it does not know are refused below
                types = {each["name"]: each["type"] for each in inspector.get_columns(name, schema)}
            where = f"{place}, table {one_line(table)}"
            check_names(list(types), columns, where)
            yield PostgresTable(connection=connection, schema=schema, name=name, types=types, where=where)
    except (SQLAlchemyError, UnicodeError) as error:
        # the text may quote a row, or hold the address; the type tells what it was
        raise DataError(
            f"the database cannot be read ({type(error).__name__}); check url, table and that the server is running"
        ) from error


def _reader(kind: Any, name: str, where: str) -> Reader:
    """What turns cells of a column of the database into Arrow's."""
    from sqlalchemy import types  # noqa: PLC0415

    if isinstance(kind, types.Boolean):
        return lambda cells: arrow.array(cells, arrow.bool_())
    if isinstance(kind, types.Integer):
        return lambda cells: arrow.array(cells, arrow.int64())
    if isinstance(kind, types.Numeric | types.Float):
        return lambda cells: arrow.array([None if each is None else float(each) for each in cells], arrow.float64())
    if isinstance(kind, types.Date):
        return lambda cells: arrow.array(cells, arrow.date32())
    if isinstance(kind, types.DateTime):
        zone = "UTC" if kind.timezone else None
        return lambda cells: arrow.array(cells, arrow.timestamp("us", zone))
    if isinstance(kind, types.String | types.Uuid):
        return lambda cells: arrow.array([None if each is None else str(each) for each in cells], arrow.string())
    raise DataError(
        f"{where}: column '{name}' holds {one_line(kind)}; only numbers, text, dates and booleans can be declared"
    )


def refuse_table(place: str, table: str, present: Sequence[str]) -> NoReturn:
    instead = suggest(table, [one_line(each) for each in present], at_most=12) if present else "it has no tables"
    raise DataError(f"{place} has no table '{one_line(table)}'; {instead}")


def schema_and_name(table: str, usual: Any) -> tuple[Any, str]:
    schema, dot, name = table.partition(".")
    return (schema, name) if dot else (usual, table)


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
