"""Random statements over real tables: owners with DuckDB and PostgreSQL answer as DuckDB does of all rows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psycopg
import pytest
import sqlglot
from postgres import fresh_database
from pyarrow import csv
from table_world import TableWorld, running

from real_statements import SUBJECTS, RandomStatement, Subject, asked_tables, asked_terms
from support.needs import data_set
from test_query import plain
from winnow.analytics.program import run_plain
from winnow.analytics.question import read_question
from winnow.analytics.sql.postgres_engine import select_rows
from winnow.analytics.sql.spatial_functions import expand_spatial
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.tables.read_rows import typed_table

SQL_TYPES = {"integer": "bigint", "number": "double precision", "text": "text", "date": "timestamp"}


class KeptTables:
    """What one owner has, in a database of its own."""

    def __init__(self, url: str, tables: Mapping[str, OwnerTable]) -> None:
        self._url, self._tables = url.replace("postgresql://", "postgresql+psycopg://"), tables
        with psycopg.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
            for name, table in tables.items():
                columns = {each: str(own.known_type) for each, own in table.declaration.columns.items()}
                made = ", ".join(f"{each} {SQL_TYPES[kind]}" for each, kind in columns.items())
                cursor.execute(f"CREATE TABLE {name} ({made})")
                with cursor.copy(f"COPY {name} FROM STDIN") as copy:
                    for row in table.rows.select(list(columns)).to_pylist():
                        copy.write_row(tuple(row.values()))

    def chosen(self, sql: str, names: tuple[str, ...]) -> dict[str, OwnerTable]:
        """What a statement needs of them."""
        found = {}
        for name in names:
            table = self._tables[name]
            rows = select_rows(self._url, name, table.declaration, sql, name, noisy=False) if len(table) else None
            found[name] = table if rows is None else typed_table(table.declaration, [(name, rows)])
        return found


def check(subject: Subject, statement: RandomStatement, tables: list[Any], kept: KeptTables | None = None) -> None:
    question = read_question({"kind": "query", "sql": statement.sql})
    own = tables if kept is None else [kept.chosen(statement.sql, question.tables), *tables[1:]]
    terms = asked_terms(question, tables)
    answer = run_plain(lambda: question.program(terms), asked_tables(question, own))
    told = [tuple(row.values()) for row in answer["rows"]]
    assert not statement.differences(told, pooled_answer(subject, statement)), statement.sql


def pooled_answer(subject: Subject, statement: RandomStatement) -> list[tuple[Any, ...]]:
    """DuckDB's own, over the rows of all owners."""
    with duckdb.connect() as opened:
        for name, table in subject.pooled.items():
            opened.register(name, table)
        sql = expand_spatial(sqlglot.parse_one(statement.sql, read="duckdb")).sql("duckdb")
        return [tuple(map(plain, row)) for row in opened.execute(sql).fetchall()]


def subject_of(name: str, folder: Path, rows: int) -> Subject:
    needed = {"adult": "tabular", "taxi": "spatial", "movielens": "movielens"}.get(name)
    if needed is not None:
        data_set(folder, needed)
    return SUBJECTS[name](folder, rows)


def check_random(name: str, folder: Path, url: str | None, *, rows: int, divisions: int, statements: int) -> None:
    subject = subject_of(name, folder, rows)
    for division in range(divisions):
        rng = np.random.default_rng([division, len(name)])
        tables = subject.divided(int(rng.integers(2, 8)), division)
        kept = None if url is None else KeptTables(fresh_database(url), tables[0])
        for number in range(statements):
            check(subject, subject.statement(rng), tables, kept if number % 2 else None)


@pytest.mark.parametrize("name", SUBJECTS)
def test_random_statements_over_real_tables(name: str, data_directory: Path) -> None:
    check_random(name, data_directory, None, rows=1_500, divisions=2, statements=3)


@pytest.mark.slow(part="science")
@pytest.mark.parametrize("name", SUBJECTS)
def test_five_hundred_random_statements_over_real_tables(name: str, data_directory: Path, postgres: str) -> None:
    """Half of them with an owner whose rows PostgreSQL chooses."""
    check_random(name, data_directory, postgres, rows=4_000, divisions=5, statements=25)


ADULT = """
[tables.people]
file = "people.csv"
[tables.people.columns]
age = { level = "protected", type = "integer", bounds = [17, 90] }
work = { level = "public", type = "text" }
years = { level = "protected", type = "integer", bounds = [1, 16] }
sex = { level = "protected", values = ["Female", "Male"] }
gain = { level = "protected", type = "integer", bounds = [0, 99999] }
hours = { level = "protected", type = "integer", bounds = [1, 99] }
country = { level = "public", type = "text" }
income = { level = "protected", values = ["<=50K", ">50K"] }
"""
ADULT_RULE = """
[[queries]]
people = ["ana"]
tables = ["people"]
allow = ["aggregate", "extremes"]
minimum = 1
"""


@pytest.mark.slow(part="deploy")
def test_random_statements_between_organisations(tmp_path: Path, data_directory: Path) -> None:
    sites = ("east", "north", "west")
    subject, world = subject_of("adult", data_directory, 1_500), TableWorld(tmp_path, sites)
    for site, tables in zip(sites, subject.divided(3, seed=4), strict=True):
        csv.write_csv(tables["people"].rows, world.kit(site) / "people.csv")
        (world.kit(site) / "site.toml").write_text(ADULT)
    world.allow(ADULT_RULE)
    rng = np.random.default_rng(11)
    with running(world) as connection:
        for _ in range(6):
            statement = subject.statement(rng)
            told = [tuple(row.values()) for row in connection.query(statement.sql).rows]
            assert not statement.differences(told, pooled_answer(subject, statement)), statement.sql
