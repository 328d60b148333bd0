"""Public places of one organisation, and people of two others near them, between real processes."""

from collections.abc import Iterator

import pytest
from pyarrow import csv
from table_world import TableWorld, running

from place_tables import place_rows, pooled_places
from winnow.deploy.client.connection import Connection

STATIONS = """
[tables.stations]
file = "stations.csv"
[tables.stations.columns]
name = { level = "public", type = "text" }
x = { level = "public", type = "number", bounds = [-10, 10] }
y = { level = "public", type = "number", bounds = [-10, 10] }
beds = { level = "protected", type = "integer", bounds = [0, 100] }
"""
PEOPLE = """
[tables.people]
file = "people.csv"
[tables.people.columns]
x = { level = "protected", type = "number", bounds = [-10, 10] }
y = { level = "protected", type = "number", bounds = [-10, 10] }
age = { level = "protected", type = "integer", bounds = [0, 110] }
"""
RULE = """
[[queries]]
people = ["ana"]
tables = ["stations", "people"]
allow = ["aggregate", "nearest"]
minimum = 1
"""
POOLED = place_rows(300, 4, seed=5)
STATEMENTS = (
    "SELECT name, COUNT(*) AS n, AVG(age) AS a FROM stations s JOIN people p ON DWITHIN(s.x, s.y, p.x, p.y, 4) GROUP "
    "BY name ORDER BY name",
    "SELECT name, COUNT(*) AS n, AVG(n.age) AS a FROM stations s CROSS JOIN LATERAL (SELECT * FROM people p ORDER BY "
    "DISTANCE(s.x, s.y, p.x, p.y) LIMIT 20) n GROUP BY name ORDER BY name",
)
pytestmark = pytest.mark.slow(part="deploy")


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    world = TableWorld(tmp_path_factory.mktemp("places"), ("agency", "north", "south"))
    csv.write_csv(POOLED["stations"], world.kit("agency") / "stations.csv")
    (world.kit("agency") / "site.toml").write_text(STATIONS)
    for place, site in enumerate(("north", "south")):
        csv.write_csv(POOLED["people"].slice(150 * place, 150), world.kit(site) / "people.csv")
        (world.kit(site) / "site.toml").write_text(PEOPLE)
    world.allow(RULE)
    with running(world) as connection:
        yield connection


@pytest.mark.parametrize("sql", STATEMENTS)
def test_sites_tell_who_is_near_which_place_as_duckdb_does(connection: Connection, sql: str) -> None:
    expected = pooled_places(sql, POOLED)
    answer = connection.query(sql)
    assert [(row["name"], row["n"]) for row in answer.rows] == [row[:2] for row in expected]
    assert [row["a"] for row in answer.rows] == pytest.approx([row[2] for row in expected], rel=1e-9)
