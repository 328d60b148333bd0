"""Declared columns of a table in a DuckDB file or a PostgreSQL database, read-only."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as arrow

from winnow.analytics.tables.read_files import check_names
from winnow.analytics.tables.source import DUCKDB
from winnow.core import DataError, suggest
from winnow.core.installed_package import install_command
from winnow.core.untrusted_text import one_line

FETCH_ROWS = 20_000


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
    schema, name = _schema_and_name(table, "main")
    with duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false"}) as database:
        try:
            database.execute(f"ATTACH {_literal(str(path))} AS source (READ_ONLY)")
        except duckdb.Error as error:
            raise DataError(f"{one_line(path)} is not a readable DuckDB file") from error
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")
        present = database.execute(
            "SELECT table_schema, table_name, list(column_name ORDER BY ordinal_position)"
            " FROM information_schema.columns WHERE table_catalog = 'source' GROUP BY ALL"
        ).fetchall()
        tables = {(each[0], each[1]): each[2] for each in present}
        if (schema, name) not in tables:
            _refuse_table(one_line(path), table, [n if s == "main" else f"{s}.{n}" for s, n in tables])
        check_names(tables[schema, name], columns, where)
        wanted = ", ".join(map(_identifier, columns))
        try:
            rows = database.sql(f"SELECT {wanted} FROM source.{_identifier(schema)}.{_identifier(name)}")  # noqa: S608
            return rows.to_arrow_table()
        except duckdb.Error as error:
            raise DataError(f"{where} cannot be read ({type(error).__name__})") from error


def _read_postgresql(url: str, table: str, columns: Sequence[str]) -> arrow.Table:
    """In a transaction that can only read."""
    if find_spec("sqlalchemy") is None or find_spec("psycopg") is None:
        raise DataError(f"PostgreSQL needs SQLAlchemy and psycopg: {install_command('deploy')}")
    from sqlalchemy import column, create_engine, inspect, make_url, select  # noqa: PLC0415 - an extra
    from sqlalchemy import table as table_clause  # noqa: PLC0415
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    try:
        address = make_url(url)
        place = f"{address.host or 'localhost'}/{address.database or ''}"
        engine = create_engine(address, poolclass=NullPool)
        schema, name = _schema_and_name(table, None)
        options: dict[str, Any] = {"stream_results": True, "yield_per": FETCH_ROWS, "postgresql_readonly": True}
        with engine.connect().execution_options(**options) as connection:
            inspector = inspect(connection)
            if not inspector.has_table(name, schema):
                views = inspector.get_view_names(schema)
                prefix = f"{schema}." if schema else ""
                _refuse_table(place, table, [prefix + each for each in (*inspector.get_table_names(schema), *views)])
            types = {each["name"]: each["type"] for each in inspector.get_columns(name, schema)}
            where = f"{place}, table {one_line(table)}"
            check_names(list(types), columns, where)
            readers = [_reader(types[each], each, where) for each in columns]
            query: Any = select(*map(column, columns)).select_from(table_clause(name, schema=schema))
            rows = iter(connection.execute(query))
            batches = iter(lambda: list(islice(rows, FETCH_ROWS)), [])
            chunks = [
                arrow.Table.from_arrays(
                    [read(list(cells)) for read, cells in zip(readers, zip(*batch, strict=True), strict=True)],
                    names=list(columns),
                )
                for batch in batches
            ]
    except SQLAlchemyError as error:
        # the text may quote a row, or hold the address; the type tells what it was
        raise DataError(
            f"the database cannot be read ({type(error).__name__}); check url, table and that the server is running"
        ) from error
    empty = arrow.Table.from_arrays([arrow.nulls(0)] * len(columns), names=list(columns))
    return arrow.concat_tables(chunks) if chunks else empty


def _reader(kind: Any, name: str, where: str) -> Callable[[list[Any]], arrow.Array]:
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


def _refuse_table(place: str, table: str, present: Sequence[str]) -> None:
    instead = suggest(table, [one_line(each) for each in present], at_most=12) if present else "it has no tables"
    raise DataError(f"{place} has no table '{one_line(table)}'; {instead}")


def _schema_and_name(table: str, usual: Any) -> tuple[Any, str]:
    schema, dot, name = table.partition(".")
    return (schema, name) if dot else (usual, table)


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
