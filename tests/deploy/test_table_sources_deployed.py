"""Owners keep the same table in a CSV file, a DuckDB file and a PostgreSQL database: nobody sees a difference."""

import io
from pathlib import Path

import duckdb
import pandas as pd
import psycopg
import pytest
from postgres import fresh_database
from table_world import SECTION, TableWorld, running, stays

from winnow.analytics.program import run_plain
from winnow.analytics.question import read_question

SITES = ("east", "north", "west")


@pytest.mark.slow(part="deploy")
def test_the_answer_does_not_depend_on_where_rows_are_kept(postgres: str, tmp_path: Path) -> None:
    world = TableWorld(tmp_path, SITES)
    frames = {site: pd.read_csv(io.StringIO(stays(number))) for number, site in enumerate(SITES)}
    with duckdb.connect(str(world.kit("north") / "stays.duckdb")) as database:
        database.register("given", frames["north"].assign(secret="x"))
        database.execute("CREATE SCHEMA ward; CREATE TABLE ward.kept AS SELECT * FROM given")
    url = fresh_database(postgres)
    with psycopg.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE kept (ward text, age int, cost numeric(12, 2), secret text)")
        cursor.executemany("INSERT INTO kept VALUES (%s, %s, %s, 'x')", frames["west"].values.tolist())
    file = 'file = "stays.csv"'
    for site, source in {
        "north": 'url = "duckdb:///stays.duckdb"\ntable = "ward.kept"',
        "west": f'url = "{url.replace("postgresql://", "postgresql+psycopg://")}"\ntable = "kept"',
    }.items():
        (world.kit(site) / "site.toml").write_text(SECTION.replace(file, source))
    question = read_question({"kind": "statistics", "table": "stays", "histograms": 4})
    terms = world.terms(question)
    expected = run_plain(lambda: question.program(terms), [world.table(site) for site in terms.owners])
    with running(world) as ana:
        assert ana.ask(question).values == expected
    for site in SITES:
        assert "secret" not in (world.folder / "logs" / f"{site}.log").read_text()
