"""A join between two organisations on a key, one of which keeps its rows in PostgreSQL."""

from collections.abc import Iterator

import duckdb
import psycopg
import pytest
from postgres import fresh_database
from pyarrow import csv
from table_world import TableWorld, running

from matched_tables import pooled_rows
from winnow.core import ConfigError, RunError
from winnow.deploy.client.connection import Connection, connect

PATIENTS = """
[tables.patients]
file = "patients.csv"
[tables.patients.columns]
pid = { level = "private", type = "integer", key = true }
age = { level = "protected", type = "integer", bounds = [0, 110] }
outcome = { level = "protected", values = ["home", "moved", "died"] }
"""
CLAIMS = """
[tables.claims]
url = "URL"
table = "claims"
[tables.claims.columns]
person = { level = "private", type = "integer", key = true }
cost = { level = "protected", type = "integer", bounds = [0, 5000] }
kind = { level = "protected", values = ["drug", "stay"] }
"""
RULE = """
[[queries]]
people = ["ana"]
tables = ["patients", "claims"]
allow = ["aggregate", "match"]
[[queries]]
people = ["bo"]
tables = ["patients", "claims"]
allow = ["aggregate"]
"""
POOLED = pooled_rows(300, seed=8)
SQL = (
    "SELECT outcome, kind, COUNT(*) AS n, AVG(cost) AS cost FROM patients JOIN claims ON pid = person "
    "WHERE age >= 30 AND cost < 4000 GROUP BY 1, 2 HAVING COUNT(*) > 40 ORDER BY n"
)
deployed = pytest.mark.slow(part="deploy")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, postgres: str) -> TableWorld:
    world = TableWorld(tmp_path_factory.mktemp("matched"), ("hospital", "insurer"))
    url = fresh_database(postgres)
    with psycopg.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE claims (person bigint, cost int, kind text)")
        with cursor.copy("COPY claims (person, cost, kind) FROM STDIN") as copy:
            for row in POOLED["claims"].select(["person", "cost", "kind"]).to_pylist():
                copy.write_row(tuple(row.values()))
    csv.write_csv(POOLED["patients"], world.kit("hospital") / "patients.csv")
    (world.kit("hospital") / "site.toml").write_text(PATIENTS)
    (world.kit("insurer") / "site.toml").write_text(
        CLAIMS.replace("URL", url.replace("postgresql://", "postgresql+psycopg://"))
    )
    world.allow(RULE)
    return world


@pytest.fixture(scope="module")
def connection(world: TableWorld) -> Iterator[Connection]:
    with running(world) as connection:
        yield connection


@deployed
def test_two_sites_join_their_tables_as_duckdb_does(connection: Connection) -> None:
    with duckdb.connect() as opened:
        for name, table in POOLED.items():
            opened.register(name, table)
        expected = opened.execute(SQL).fetchall()
    answer = connection.query(SQL)
    assert [(row["outcome"], row["kind"], row["n"]) for row in answer.rows] == [row[:3] for row in expected]
    assert [row["cost"] for row in answer.rows] == pytest.approx([row[3] for row in expected], rel=1e-9)


@deployed
@pytest.mark.usefixtures("connection")  # whose processes run
def test_a_site_that_forbids_match_joins_nothing(world: TableWorld) -> None:
    with connect(world.kit("bo")) as bo, pytest.raises((ConfigError, RunError), match="forbids match"):
        bo.query(SQL)
