"""Truth discovery between organisations: every site has its own workers' answers, and sites may be killed meanwhile."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from table_world import TableWorld, running

from command_line import call
from crowd import made_up
from waiting import eventually
from winnow.analytics.truth.truth_methods import METHODS
from winnow.analytics.truth.truth_question import TruthQuestion
from winnow.analytics.truth.truth_vectors import discover_plainly
from winnow.core import AnyEvent, RoundFinished, RunError
from winnow.deploy.client.connection import Connection

SITES = ("east", "north", "west")
ITEMS, WORKERS = 30, 12
SECTION = f"""
[tables.answers]
file = "stays.csv"
[tables.answers.columns]
item = {{ level = "public", values = {[f"q{number}" for number in range(ITEMS)]} }}
person = {{ level = "private", type = "text" }}
label = {{ level = "protected", values = ["no", "yes"] }}
"""
RULE = """
[[queries]]
people = ["ana"]
tables = ["answers"]
allow = ["truth"]
minimum = 3
"""
QUESTION = TruthQuestion(table="answers", worker="person", ranking=True)
CROWD = made_up(workers=WORKERS, items=ITEMS, share=0.7, seed=20)
deployed = pytest.mark.slow(part="deploy")


def rows_of(place: int) -> str:
    """Workers by turns."""
    own = np.flatnonzero(CROWD.workers % len(SITES) == place)
    given = zip(CROWD.items[own], CROWD.workers[own], CROWD.labels[own], strict=True)
    return "item,person,label\n" + "".join(f"q{item},secret-{who},{('no', 'yes')[said]}\n" for item, who, said in given)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TableWorld:
    world = TableWorld(tmp_path_factory.mktemp("answers"), SITES)
    for place, site in enumerate(SITES):
        world.configure(site, rows_of(place), SECTION, RULE)
    return world


@pytest.fixture(scope="module")
def connection(world: TableWorld) -> Iterator[Connection]:
    with running(world) as connection:
        yield connection


def check(answer: dict[str, Any]) -> None:
    """It is what somebody finds who has all answers (each item has three at least)."""
    sure = discover_plainly(METHODS["logistic"], CROWD, 10).confidence[:, 0]
    assert [each["truth"] for each in answer["items"]] == [("no", "yes")[int(each > 0.5)] for each in sure]
    told = [each["confidence"] for each in answer["items"]]
    assert told == pytest.approx(np.maximum(sure, 1 - sure).tolist(), abs=1e-6)
    of_answers = np.where(CROWD.labels == 1, sure[CROWD.items], 1 - sure[CROWD.items])
    trust = [float(of_answers[CROWD.workers % 3 == place].mean()) for place in range(3)]
    ranks = [1 + sum(other > own for other in trust) for own in trust]
    expected = [{"worker": site, "trust": None, "rank": rank} for site, rank in zip(SITES, ranks, strict=True)]
    assert answer["participants"] == expected


@deployed
def test_the_command_finds_the_truth_and_the_server_sees_no_worker(
    world: TableWorld, connection: Connection, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kit, page = world.kit("ana"), tmp_path / "truth.html"
    done = call(capsys, "truth", "answers", "--kit", kit, "--worker", "person", "--ranking", "--json", "--out", page)
    assert done.code == 0, done.err
    check(json.loads(done.out))
    assert "Truth discovery" in page.read_text()
    told = b"".join(path.read_bytes() for path in world.kit("server").rglob("*") if path.is_file())
    assert b"answers" in told
    assert b"secret-" not in told
    refused = call(capsys, "truth", "answers", "--kit", kit, "--worker", "person", "--trust")
    assert refused.code == 2
    assert "per-owner" in refused.err.splitlines()[-1]


@deployed
@pytest.mark.parametrize("name", ["west", "server"])
def test_who_is_killed_in_the_middle_and_comes_back_goes_on(
    world: TableWorld, connection: Connection, name: str
) -> None:
    killed = list[int]()

    def on_event(event: AnyEvent) -> None:
        if isinstance(event, RoundFinished) and event.round >= 3 and not killed:
            killed.append(event.round)
            world.kill(name)
            world.start(name)

    answer = connection.ask(QUESTION, timeout=120, on_event=on_event)
    assert killed
    check(answer.values)
    eventually(lambda: all(site.connected for site in connection.sites()))


@deployed
def test_a_site_that_is_gone_for_good_is_named_and_nothing_is_answered(
    world: TableWorld, connection: Connection
) -> None:
    gone = list[str]()

    def on_event(event: AnyEvent) -> None:
        if isinstance(event, RoundFinished) and not gone:
            world.kill("north")
            gone.append("north")

    for seconds in (30, 120, 600):  # on a busy machine the first round takes longer than the site may be away
        with pytest.raises(RunError) as refused:
            connection.ask(QUESTION, timeout=seconds, on_event=on_event)
        if gone:
            break
    assert gone
    assert "north" in str(refused.value)
    world.start("north")
    eventually(lambda: all(site.connected for site in connection.sites()))
    check(connection.ask(QUESTION).values)
