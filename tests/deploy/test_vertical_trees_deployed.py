"""Trees over columns of two organisations, between processes: the simulation's model, through kills, with a helper."""

from pathlib import Path

import pandas as pd
import pytest
from table_world import TableWorld, running

from tree_rows import rows_of
from waiting import eventually
from winnow.analytics.permissions import PERMISSIONS
from winnow.analytics.question import QueryTerms, Question, read_question
from winnow.analytics.simulate import ask_owners
from winnow.analytics.tables.parse_table_section import parse_table
from winnow.analytics.tables.read_rows import read_rows
from winnow.analytics.trees.vertical_parts import PART_FILE, PREDICTIONS_FILE, with_parts
from winnow.core import AnyEvent, RoundFinished
from winnow.deploy.client.connection import Connection

KEY = {"level": "private", "key": True, "type": "text"}
TABLES = {
    "bank": (
        "loans",
        {
            "id": KEY,
            "x": {"level": "protected", "bounds": [-4, 4]},
            "yes": {"level": "protected", "values": ["no", "yes"]},
        },
    ),
    "shop": (
        "baskets",
        {
            "id": KEY,
            "heavy": {"level": "protected", "type": "integer", "bounds": [0, 100_000]},
            "kind": {"level": "protected", "values": ["a", "b", "c", "d"]},
        },
    ),
}
RULE = """
[[queries]]
people = ["ana"]
tables = ["loans", "baskets"]
allow = ["match", "vertical-trees"]
"""


def configure(world: TableWorld) -> pd.DataFrame:
    import tomli_w

    rows = rows_of(300).assign(id=[f"p{place:05d}" for place in range(300)])
    for site, (name, columns) in TABLES.items():
        section = tomli_w.dumps({"results": "found", "tables": {name: {"file": f"{name}.csv", "columns": columns}}})
        world.configure(site, "", section, RULE)
        held = rows.sample(frac=0.9, random_state=len(site) + len(name))
        held[list(columns)].to_csv(world.kit(site) / f"{name}.csv", index=False)
    return rows


def asked() -> Question:
    given = {"kind": "trees", "table": "loans", "vertical": "baskets", "key": "id", "target": "yes", "overlap": 100}
    return read_question({**given, "rounds": 5, "depth": 3})


def simulated(world: TableWorld) -> tuple[dict[str, object], dict[str, dict[str, str]]]:
    tables, terms, files = {}, {}, {}
    for site, (name, columns) in TABLES.items():
        declaration, source = parse_table({"file": f"{name}.csv", "columns": columns}, f"table {name}")
        tables[site] = read_rows(source.absolute(world.kit(site)), declaration)
        terms[site] = QueryTerms(
            declaration=tables[site].declaration, table="" if site == "bank" else name, allow=PERMISSIONS
        )
    answer = ask_owners(asked(), tables, terms, on_files=files.__setitem__)
    return answer, files


def kept(world: TableWorld, site: str, name: str) -> list[str]:
    return [file.read_text() for file in sorted((world.kit(site) / "found").glob(f"*/{name}"))]


def compare(world: TableWorld, values: dict[str, object]) -> None:
    """The author's answer, and what each site finds among its results."""
    answer, files = simulated(world)
    assert values == answer
    eventually(lambda: all(kept(world, site, PART_FILE) for site in TABLES), "both owners keep their part")
    found = {site: {PART_FILE: kept(world, site, PART_FILE)[-1]} for site in TABLES}
    assert with_parts(values, found)["trees"] == with_parts(answer, files)["trees"]
    assert kept(world, "bank", PREDICTIONS_FILE)[-1] == files["bank"][PREDICTIONS_FILE]
    assert not kept(world, "shop", PREDICTIONS_FILE)
    told = b"".join(path.read_bytes() for path in world.kit("server").rglob("*") if path.is_file())
    assert b"p00001" not in told


@pytest.mark.slow(part="deploy")
def test_two_organisations_and_the_server_give_the_simulations_trees_through_kills(tmp_path: Path) -> None:
    """Masks and shares are gone with a process: the parties make new ones, and the tree begins again."""
    world = TableWorld(tmp_path, ("bank", "shop"))
    configure(world)
    restarts = {3: "bank", 4: "shop", 5: "server"}

    def restart(event: AnyEvent) -> None:
        if isinstance(event, RoundFinished) and event.round in restarts:
            name = restarts.pop(event.round)
            world.kill(name)
            world.start(name)

    with running(world) as connection:
        values = connection.ask(asked(), on_event=restart, timeout=240).values
        assert not restarts
        compare(world, values)


@pytest.mark.slow(part="deploy")
def test_a_helper_site_is_the_third_party_where_one_is_willing(tmp_path: Path) -> None:
    world = TableWorld(tmp_path, ("bank", "shop", "trusted"))
    configure(world)
    world.configure("trusted", "", "", "helper = true\n")
    with running(world) as connection:
        compare(world, _ask(connection))


def _ask(connection: Connection) -> dict[str, object]:
    return connection.ask(asked(), owners=("bank", "shop", "trusted"), timeout=240).values
