"""SQL between organisations: a server and three agents as processes give DuckDB's answer of the pooled rows."""

import json
from collections.abc import Iterator

import duckdb
import pyarrow as arrow
import pytest
from table_world import SECTION, TableWorld, running, stays

from command_line import call
from winnow.core import ConfigError, RunError
from winnow.deploy.client.connection import Connection

SITES = ("east", "north", "west")
RULE = '\n[[queries]]\npeople = ["ana"]\ntables = ["stays"]\nallow = ["aggregate"]\n'
deployed = pytest.mark.slow(part="deploy")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TableWorld:
    world = TableWorld(tmp_path_factory.mktemp("tables"), SITES)
    for number, site in enumerate(SITES):
        world.configure(site, stays(number), SECTION)
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
def test_what_a_site_does_not_allow_is_refused_in_one_line(connection: Connection) -> None:
    with pytest.raises((ConfigError, RunError), match="extremes"):
        connection.query("SELECT MAX(age) FROM stays")
