"""Databases with absurd cells or odd types, which fail in the middle, write or hang: one line, never a traceback."""

import time
from pathlib import Path
from typing import Any

import duckdb
import pytest
from postgres import fresh_database

from winnow.analytics.tables import read_databases, read_postgresql
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.tables.parse_table_section import parse_table
from winnow.analytics.tables.read_rows import read_rows
from winnow.core import DataError

pytestmark = pytest.mark.slow(part="attacks")


CELLS = {
    "numeric": ["'NaN'", "'Infinity'", "1e400", "'-Infinity'", "1e-400"],
    "float8": ["'NaN'", "'Infinity'", "1e308"],
    "int8": ["9223372036854775807", "-9223372036854775808"],
    "date": ["'infinity'", "'-infinity'", "'4713-01-01 BC'", "'5874897-12-31'"],
    "timestamp": ["'infinity'", "'294276-12-31 23:59:59'", "'4713-01-01 BC'"],
    "timestamptz": ["'infinity'", "'0044-03-15 BC'", "'9999-12-31 23:59:59+00'"],
    "text": ["repeat('x', 3000000)", "E'a\\nb\\u202E'", "''", "'NaN'", "'1e999'"],
    "boolean": ["true"],
    "json": ["'{}'"],
    "bytea": ["'\\xff'"],
    "int4[]": ["'{1,2}'"],
    "interval": ["'1 day'"],
    "money": ["'$1.00'"],
    "point": ["'(1,2)'"],
    "int4range": ["'[1,5)'"],
    "uuid": ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"],
    "bit(3)": ["B'101'"],
    "inet": ["'10.0.0.1'"],
    "oid": ["4294967295"],
}
DECLARED = ("number", "integer", "text", "date", "boolean", None)


def rows_or_line(url: str, kind: str | None) -> int | str:
    """How many rows are read, or the line in which they are refused."""
    try:
        return len(read(url, kind))
    except DataError as error:
        line = str(error)
    assert "\n" not in line
    assert len(line) < 400
    return line


def read(url: str, kind: str | None) -> OwnerTable:
    column: dict[str, Any] = {"level": "protected", **({} if kind is None else {"type": kind})}
    declaration, source = parse_table({"url": url, "table": "odd", "columns": {"c": column}}, "table odd:")
    return read_rows(source, declaration)


def driver(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")


CHECK = "check url, table and that the server is running"


@pytest.mark.parametrize("kind", CELLS)
def test_cells_that_no_column_holds_are_read_or_refused_in_one_line(postgres: str, kind: str) -> None:
    import psycopg

    url = fresh_database(postgres)
    for cell in CELLS[kind]:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS odd")
            connection.execute(f"CREATE TABLE odd AS SELECT CAST({cell} AS {kind}) AS c FROM generate_series(1, 3)")
        for declared in DECLARED:
            found = rows_or_line(driver(url), declared)
            assert found == 3 or isinstance(found, str), (cell, declared)


VIEWS = {
    "fails in the middle": "SELECT 1 / (n - 30000) AS c FROM generate_series(1, 60000) AS n",
    "writes": "SELECT nextval('counter') AS c",
    "hangs": "SELECT 1 AS c FROM pg_sleep(3600)",
    "another's column": 'SELECT 1 AS "c ", 2 AS "C"',
    "two of one name": 'SELECT 1 AS "d", 2 AS "e"',
}


@pytest.mark.parametrize("view", VIEWS)
def test_views_that_fail_write_or_hang_are_one_line(postgres: str, view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import psycopg

    monkeypatch.setitem(read_postgresql.LIMITS, "statement_timeout", "1s")
    url = fresh_database(postgres)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SEQUENCE counter")
        connection.execute(f"CREATE VIEW odd AS {VIEWS[view]}")
    began = time.monotonic()
    with pytest.raises(DataError) as refused:
        read(driver(url), "number")
    assert "\n" not in str(refused.value)
    assert time.monotonic() - began < 60
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT is_called FROM counter").fetchone() == (False,)


def test_text_that_is_no_text_is_one_line(postgres: str) -> None:
    """A database without an encoding returns whatever bytes were put into it."""
    import psycopg

    with psycopg.connect(f"host={postgres} user=winnow dbname=postgres", autocommit=True) as connection:
        connection.execute("CREATE DATABASE bytes ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    url = f"postgresql://winnow@/bytes?host={postgres}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE odd (c text)")
        connection.execute("INSERT INTO odd VALUES (E'\\xff\\xfe'), ('x')".encode("latin-1"))
    assert rows_or_line(driver(url), "text") == f"the database cannot be read (DataError); {CHECK}"


FILES = {
    "list": "SELECT [1, 2] AS c",
    "struct": "SELECT {'a': 1} AS c",
    "blob": "SELECT 'x'::BLOB AS c",
    "huge": "SELECT 170141183460469231731687303715884105727::HUGEINT AS c",
    "decimal": "SELECT 99999999999999999999999999999999999999::DECIMAL(38, 0) AS c",
    "infinite": "SELECT 'infinity'::TIMESTAMP AS c",
    "infinite date": "SELECT '-infinity'::DATE AS c",
    "interval": "SELECT INTERVAL 3 DAY AS c",
    "uuid": "SELECT uuid() AS c",
    "enum": "SELECT 'a'::ENUM('a', 'b') AS c",
    "nan": "SELECT 'nan'::DOUBLE AS c",
    "bits": "SELECT '101'::BIT AS c",
    "time": "SELECT TIME '12:00:00' AS c",
    "nanoseconds": "SELECT TIMESTAMP_NS '2020-01-01 00:00:00.123456789' AS c",
    "null": "SELECT NULL AS c",
}


@pytest.mark.parametrize("name", FILES)
def test_duckdb_files_with_odd_cells_are_read_or_refused_in_one_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "odd.duckdb"
    with duckdb.connect(str(path)) as opened:
        opened.execute(f"CREATE TABLE odd AS {FILES[name]}")
    for declared in DECLARED:
        found = rows_or_line(f"duckdb:///{path}", declared)
        assert found == 1 or isinstance(found, str), declared


@pytest.mark.parametrize(
    "view",
    [
        "SELECT count(*)::DOUBLE AS c FROM range(1000000000) a, range(1000000000) b WHERE hash(a.range + b.range) = 7",
        "SELECT error('told') AS c",
        "SELECT 1::INTEGER AS c FROM read_csv('/etc/passwd')",
    ],
)
def test_duckdb_views_that_hang_fail_or_reach_out_are_one_line(
    tmp_path: Path, view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_databases, "MAX_SECONDS", 2.0)
    path = tmp_path / "odd.duckdb"
    with duckdb.connect(str(path)) as opened:
        opened.execute("CREATE TABLE others AS SELECT 1.0 AS c")
        opened.execute(f"CREATE VIEW odd AS {view}")
    began = time.monotonic()
    with pytest.raises(DataError) as refused:
        read(f"duckdb:///{path}", "number")
    assert "told" not in str(refused.value)
    assert time.monotonic() - began < 60
