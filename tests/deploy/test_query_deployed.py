"""SQL between organisations: a server and three agents as processes give DuckDB's answer of the pooled rows."""

import json
from collections.abc import Iterator

import duckdb
import psycopg
import pyarrow as arrow
import pytest
from postgres import fresh_database
from table_world import SECTION, TableWorld, running, stays

from command_line import call
from winnow.core import ConfigError, RunError
from winnow.deploy.client.connection import Connection
from winnow.privacy.concentrated_privacy import epsilon_of, rho_of

SITES = ("east", "north", "west")
RULE = """
[[queries]]
people = ["ana"]
tables = ["stays"]
allow = ["aggregate"]
[[queries]]
people = ["bo"]
tables = ["stays"]
allow = ["aggregate"]
noise = { epsilon = 4.0 }
"""
TYPED = SECTION.replace("bounds = [0, 110]", 'type = "integer", bounds = [0, 110]')
deployed = pytest.mark.slow(part="deploy")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, postgres: str) -> TableWorld:
    """West keeps its rows in PostgreSQL."""
    world = TableWorld(tmp_path_factory.mktemp("tables"), SITES)
    for number, site in enumerate(SITES):
        world.configure(site, stays(number), TYPED)
    url = fresh_database(postgres)
    with psycopg.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE kept (ward text, age smallint, cost numeric(12, 2), secret text)")
        with cursor.copy("COPY kept (ward, age, cost) FROM STDIN (FORMAT csv)") as copy:
            copy.write(stays(SITES.index("west")).partition("\n")[2])
    source = f'url = "{url.replace("postgresql://", "postgresql+psycopg://")}"\ntable = "kept"'
    (world.kit("west") / "site.toml").write_text(TYPED.replace('file = "stays.csv"', source))
    world.allow(RULE)
    return world


@pytest.fixture(scope="module")
def connection(world: TableWorld) -> Iterator[Connection]:
    with running(world) as connection:
        yield connection


def pooled(world: TableWorld, sql: str) -> list[tuple[object, ...]]:
    rows = arrow.concat_tables([world.table(site).rows for site in SITES])
    with duckdb.connect() as opened:
        opened.register("stays", rows)
        return opened.execute(sql).fetchall()


@deployed
def test_sites_answer_a_statement_as_duckdb_does_of_all_rows(
    world: TableWorld, connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    sql = "SELECT ward, COUNT(*) AS n, AVG(cost) AS cost FROM stays WHERE age >= 30 GROUP BY ward ORDER BY n DESC"
    answer = connection.query(sql)
    expected = pooled(world, sql)
    assert [(row["ward"], row["n"]) for row in answer.rows] == [row[:2] for row in expected]
    assert [row["cost"] for row in answer.rows] == pytest.approx([row[2] for row in expected], rel=1e-9)
    done = call(capsys, "query", sql, "--kit", world.kit("ana"), "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["rows"] == answer.rows


@deployed
def test_owners_tell_what_a_statement_costs_and_what_is_left_of_a_budget(
    world: TableWorld, connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    sql = "SELECT ward, COUNT(*) AS n FROM stays GROUP BY ward"
    explained = call(capsys, "query", "--explain", sql, "--kit", world.kit("ana"))
    assert explained.out.splitlines()[-1].startswith("Costs: about ")
    refused = call(capsys, "query", sql, "--kit", world.kit("bo"))
    assert "with noise only" in refused.err
    before = json.loads(call(capsys, "query", "budget", "--kit", world.kit("bo"), "--json").out)
    assert [(each["owner"], each["left"], each["epsilon"]) for each in before] == [(site, 4.0, 4.0) for site in SITES]
    done = call(capsys, "query", sql, "--kit", world.kit("bo"), "--epsilon", "1.5")
    assert done.code == 0, done.err
    assert "3 owners, 2 exchanges, " in done.err.splitlines()[-1]
    after = json.loads(call(capsys, "query", "budget", "--kit", world.kit("bo"), "--json").out)
    left = [each["left"] for each in after]
    assert left == pytest.approx([epsilon_of(rho_of(4.0, 1e-6) - rho_of(1.5, 1e-6), 1e-6)] * 3, abs=0.01)
    assert "no noise demanded" in call(capsys, "query", "budget", "--kit", world.kit("ana")).out


@deployed
def test_what_a_site_does_not_allow_is_refused_in_one_line(connection: Connection) -> None:
    with pytest.raises((ConfigError, RunError), match="extremes"):
        connection.query("SELECT MAX(age) FROM stays")
