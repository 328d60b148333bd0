"""One suite for both engines: whether DuckDB has all rows or those that PostgreSQL chose, the answer is the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psycopg
import pyarrow as arrow
import pytest
from postgres import fresh_database
from pyarrow import compute

from join_tables import DECLARATIONS, join_terms, pooled_join, pooled_tables
from query_tables import CONDITIONS, DECLARATION, answer_of, pooled_rows, random_statement
from winnow.analytics.program import run_plain
from winnow.analytics.question import merge_terms, read_question
from winnow.analytics.sql.postgres_engine import SPACES, select_rows
from winnow.analytics.tables import read_limit
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.tables.read_databases import read_database
from winnow.analytics.tables.read_postgresql import open_postgresql
from winnow.analytics.tables.read_rows import read_site_table, typed_table
from winnow.core import DataError
from winnow.deploy.site.database_query_export import fetch_table

TYPES = {
    "ward": "varchar(40)",
    "age": "smallint",
    "cost": "numeric(14, 6)",
    "outcome": "text",
    "patient": "text",
    "day": "timestamptz",
    "well": "boolean",
    "x": "double precision",
    "y": "real",
    "note": "text",
}
NAMES = list(DECLARATION.columns)
ODD: dict[str, list[Any]] = {
    "ward": ["  cardiac\u3000", "", "\t", "a\\%b", "a%b", "É", "Z", "a", "ward_1", "🤦🏼‍♂️"],
    "age": [-5, 0, 110, 111, 32000, None, 7, -7, 50, 64],
    "cost": [-1.0, 0.0, 50000.0, 50000.000001, 0.1, 0.3, 1e7, None, 1000.0, 9000.0],
    "x": [float("nan"), -10.0, 10.0, 1e300, -1e300, 5e-324, 0.1 + 0.2, 0.3, None, -0.0],
    "y": [0.1, 0.3, 10.0, -10.0, 1e30, float("nan"), None, 1.0, 2.5, -0.0],
    "note": ["\n17 ", "NA", "%", "_", "it's", "x' OR TRUE --", "$1", "\\", ":y", "—"],
    "day": [
        "2020-02-29 23:59:59.999999+00",
        "2019-12-30 00:00:00+00",
        "2018-01-01 01:00:00+02",
        "2021-01-03 12:00:00+00",
    ]
    * 2
    + [None, "2030-01-01 00:00:00+00"],
}
MORE = (
    *("ward = 'a\\%b'", "ward LIKE 'a\\%%'", "ward LIKE '_'", "ward NOT LIKE '%a%b%'", "ward < 'b'", "ward >= 'É'"),
    *("LENGTH(ward) = 5", "TRIM(note) = '17'", "ward || '!' = 'a!'", "note IN ('NA', '%', 'it''s')", "note = '\\'"),
    *("CONTAINS(note, '')", "STARTS_WITH(note, 'x'' OR')", "note = ''", "age = -5", "age <= -1 OR age > 109"),
    *(
        "age % 7 = -0",
        "-age < -100",
        "ABS(age - 50) <= 1",
        "age * age > 12000",
        "age BETWEEN 0.5 AND 7.5",
        "cost > 0.1",
    ),
    *("cost = 0.1", "cost >= 50000", "x = 0.3", "x <> 0.3", "x + x > 0", "y = 0.1", "y > 0.3", "x IS NULL", "x > -0.5"),
    *("GREATEST(x, cost) < 1", "COALESCE(age, 5) = 5", "LEAST(x, 2.5) < 0", "well IS TRUE", "NOT (well IS NOT FALSE)"),
    *("well = (age > 30)", "day = '2020-02-29'", "day BETWEEN '2019-12-30' AND '2019-12-31'", "WEEK(day) = 1"),
    *("DAYOFWEEK(day) = 0", "ISODOW(day) = 7", "QUARTER(day) = 1 AND HOUR(day) < 12", "DATE_TRUNC('week', day) = day"),
    *("day < TIMESTAMP '2020-03-01 00:00:00' - INTERVAL 1 MONTH", "day >= DATE '2020-02-29' + INTERVAL 1 YEAR"),
    *("NOT (age > 5 AND ward = 'a')", "age IS NOT DISTINCT FROM NULL", "CAST(note AS INTEGER) = 17", "age / 0 = 1"),
    *("SQRT(x) > 1 OR age = 7", "LOWER(ward) = 'é'", "ward ILIKE 'É'", "note::INTEGER > 3 AND age < 40", "TRUE"),
    *("EXTRACT(DOY FROM day) > 300", "CASE WHEN age > 3 THEN well END", "1 = 1", "9999999999999 > age"),
)


@dataclass(frozen=True)
class Kept:
    """A table of PostgreSQL, and its rows as they are read as a whole."""

    url: str
    whole: OwnerTable

    def chosen(self, sql: str, *, noisy: bool = False) -> OwnerTable:
        rows = select_rows(self.url, "kept", DECLARATION, sql, "stays", noisy=noisy)
        assert rows is not None
        return typed_table(DECLARATION, [("kept", rows)])


@pytest.fixture(scope="module")
def kept(postgres: str) -> Kept:
    url = fresh_database(postgres)
    rows = pooled_rows(600, seed=9).to_pylist()
    for place in range(10):
        rows[place] = {**rows[place], **{name: cells[place] for name, cells in ODD.items()}}
    with psycopg.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE kept ({', '.join(f'{name} {kind}' for name, kind in TYPES.items())}, secret text)"
        )
        with cursor.copy(f"COPY kept ({', '.join(NAMES)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row([zoned(row[name]) for name in NAMES])
    url = url.replace("postgresql://", "postgresql+psycopg://")
    return Kept(url, typed_table(DECLARATION, [("kept", read_database(url, "kept", NAMES))]))


def zoned(cell: Any) -> Any:
    return cell.replace(tzinfo=UTC) if isinstance(cell, datetime) else cell


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: float(f"{each:.9g}") if isinstance(each, float) else each for name, each in row.items()}


def same_answer(kept: Kept, sql: str) -> int:
    """How many rows PostgreSQL kept back."""
    chosen = kept.chosen(sql)
    one, other = (list(map(rounded, answer_of(sql, [rows], minimum=1)["rows"])) for rows in (chosen, kept.whole))
    assert one == other, sql
    return len(kept.whole) - len(chosen)


def check_random(kept: Kept, seeds: range) -> None:
    fewer = sum(same_answer(kept, random_statement(np.random.default_rng(seed))) > 0 for seed in seeds)
    assert fewer >= len(seeds) // 8


def test_random_statements_have_the_same_answer_on_both_engines(kept: Kept) -> None:
    check_random(kept, range(16))


@pytest.mark.slow(part="science")
def test_three_hundred_random_statements_have_the_same_answer_on_both_engines(kept: Kept) -> None:
    check_random(kept, range(1000, 1300))


def check_conditions(kept: Kept, conditions: Sequence[str]) -> list[str]:
    """Those that DuckDB alone evaluates."""
    sql = "SELECT COUNT(*) AS n, SUM(COALESCE(age, 0)) AS s FROM stays WHERE "
    fetched = [each for each in conditions if same_answer(kept, sql + each) == 0]
    assert len(fetched) < len(conditions) / 3, fetched
    return fetched


@pytest.mark.slow(part="deploy")
def test_conditions_choose_the_same_rows_on_both_engines(kept: Kept) -> None:
    check_conditions(kept, (*CONDITIONS, *MORE)[::3])


@pytest.mark.slow(part="science")
def test_every_condition_chooses_the_same_rows_on_both_engines(kept: Kept) -> None:
    fetched = check_conditions(kept, (*CONDITIONS, *MORE))
    assert {*fetched} >= {"CAST(note AS INTEGER) = 17", "age / 0 = 1", "LOWER(ward) = 'é'", "ward ILIKE 'É'", "y = 0.1"}


def test_nothing_but_needed_rows_and_columns_leaves_the_database(kept: Kept) -> None:
    chosen = kept.chosen("SELECT outcome, COUNT(*) AS n FROM stays WHERE age >= 60 AND SQRT(x) > 1 GROUP BY outcome")
    rows = chosen.rows
    assert {name for name in NAMES if rows.column(name).null_count < len(rows)} == {"outcome", "age", "x"}
    assert min(rows.column("age").to_pylist()) >= 60
    assert 0 < len(rows) < len(kept.whole)
    counted = kept.chosen("SELECT COUNT(*) AS n FROM stays")
    assert len(counted) == len(kept.whole)
    assert all(counted.rows.column(name).null_count == len(counted) for name in NAMES)


def test_public_values_are_told_of_all_rows_and_samples_are_taken_of_them(kept: Kept) -> None:
    wards = {*kept.whole.rows.column("ward").to_pylist()}
    assert {
        *kept.chosen("SELECT ward, COUNT(*) AS n FROM stays WHERE age > 109 GROUP BY ward").rows["ward"].to_pylist()
    } == wards
    everything = [
        kept.chosen("SELECT COUNT(*) AS n FROM stays TABLESAMPLE BERNOULLI(10 PERCENT) WHERE age > 109"),
        kept.chosen("SELECT COUNT(*) AS n FROM stays WHERE age > 109", noisy=True),
        kept.chosen("SELECT COUNT(*) AS n FROM (SELECT * FROM stays WHERE age > 109 UNION ALL SELECT * FROM stays)"),
    ]
    assert [len(each) for each in everything] == [len(kept.whole)] * 3


def test_types_that_only_rows_tell_take_all_rows(kept: Kept) -> None:
    columns = {**DECLARATION.columns, "note": DECLARATION.columns["note"].model_copy(update={"type": None})}
    declaration = TableDeclaration(columns=columns)
    assert select_rows(kept.url, "kept", declaration, "SELECT COUNT(*) FROM stays", "stays", noisy=False) is None


def test_spaces_are_those_that_are_trimmed_elsewhere() -> None:
    trimmed = compute.utf8_trim_whitespace(arrow.array([chr(code) for code in range(1, 0xD800)])).to_pylist()
    assert "".join(chr(code) for code, left in enumerate(trimmed, start=1) if not left) == SPACES


@pytest.mark.slow(part="deploy")
def test_the_process_with_the_password_writes_what_a_statement_needs_and_fails_in_one_line(
    kept: Kept, tmp_path: Path
) -> None:
    columns = {name: each.model_dump(mode="json", exclude_none=True) for name, each in DECLARATION.columns.items()}
    section = {"url": kept.url, "table": "kept", "columns": columns}
    question = {"kind": "query", "sql": "SELECT AVG(cost) AS c FROM stays WHERE age < 20"}
    fetch_table("stays", section, question, tmp_path / "chosen.parquet")
    table = read_site_table("stays", {"file": str(tmp_path / "chosen.parquet"), "columns": columns})
    assert 0 < len(table) < len(kept.whole) / 2
    with pytest.raises(DataError, match=r"^table stays: the query failed; see the site's log$"):
        fetch_table("stays", {**section, "table": "kep"}, question, tmp_path / "none.parquet")
    assert not (tmp_path / "none.parquet").exists()


def test_a_transaction_can_only_read_and_ends_in_time(kept: Kept) -> None:
    with open_postgresql(kept.url, "kept", NAMES) as opened:
        assert opened.connection.exec_driver_sql("SHOW statement_timeout").scalar() == "1h"
        with pytest.raises(DataError, match=r"^the database cannot be read \(InternalError\)"):
            _write(kept.url)


def _write(url: str) -> None:
    with open_postgresql(url, "kept", NAMES) as opened:
        opened.connection.exec_driver_sql("DELETE FROM kept")


# Joins: what each engine's owner reads, and how much it may make of it -----------------------------------------------

JOINED = pooled_tables(120, seed=2, missing=0)
KINDS = {"integer": "bigint", "number": "double precision", "text": "text", "boolean": "boolean", None: "text"}


@pytest.fixture(scope="module")
def joined_urls(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same tables in a PostgreSQL database and in a DuckDB file."""
    path, url = tmp_path_factory.mktemp("joined") / "joined.duckdb", fresh_database(postgres)
    with duckdb.connect(str(path)) as file, psycopg.connect(url, autocommit=True) as server, server.cursor() as cursor:
        for name, rows in JOINED.items():
            file.register("rows", rows)
            file.execute(f"CREATE TABLE {name} AS SELECT * FROM rows")
            columns = DECLARATIONS[name].columns.items()
            fields = ", ".join(f"{each} {KINDS[column.known_type]}" for each, column in columns)
            cursor.execute(f"CREATE TABLE {name} ({fields})")
            with cursor.copy(f"COPY {name} ({', '.join(each for each, _ in columns)}) FROM STDIN") as copy:
                for row in rows.to_pylist():
                    copy.write_row([row[each] for each, _ in columns])
    return {"DuckDB": f"duckdb:///{path}", "PostgreSQL": url.replace("postgresql://", "postgresql+psycopg://")}


def joined_answer(url: str, sql: str) -> Any:
    """Of one owner whose tables are read as a site reads them."""
    question = read_question({"kind": "query", "sql": sql})
    own = dict[str, OwnerTable]()
    for name in question.tables:
        declared, chosen = DECLARATIONS[name], None
        if url.startswith("postgresql"):
            chosen = select_rows(url, name, declared, sql, name, noisy=False)
        rows = read_database(url, name, list(declared.columns)) if chosen is None else chosen
        own[name] = typed_table(declared, [(name, rows)])
    first, *others = own
    table = OwnerTable(own[first].declaration, own[first].rows, {name: own[name] for name in others})
    terms = merge_terms(question, join_terms(question.tables, 1))
    return run_plain(lambda: question.program(terms), [table])["rows"]


@pytest.mark.parametrize("engine", ["DuckDB", "PostgreSQL"])
def test_joins_of_an_owner_have_the_same_answers_and_limits_on_both_engines(
    engine: str, joined_urls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = joined_urls[engine]
    sql = "SELECT COUNT(*) AS n, SUM(quantity) AS q FROM orders JOIN items USING (okey) WHERE total > 200"
    assert [tuple(row.values()) for row in joined_answer(url, sql)] == pooled_join(sql, JOINED)
    exploding = " ".join(f"CROSS JOIN nations n{place}" for place in range(20))
    with pytest.raises(DataError, match="joins one row with too many others, by nations"):
        joined_answer(url, f"SELECT COUNT(*) AS n FROM orders o {exploding}")
    monkeypatch.setattr(read_limit, "MAX_CELLS", 200)
    for condition in ("", " WHERE total > 10000"):  # a join reads all rows, whatever a condition says
        with pytest.raises(DataError, match=r"table (orders|items) has more than \d+ rows of the \d columns"):
            joined_answer(url, f"SELECT COUNT(*) AS n FROM orders JOIN items USING (okey){condition}")
