"""Questions between organisations: a server and three agents as processes give the answer of pooled rows."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from table_world import NOISE_RULE, RULE, SECTION, TableWorld, running, stays

from command_line import call
from waiting import eventually
from winnow.analytics.fit.fit_question import FitQuestion
from winnow.analytics.intersect.intersect_question import IntersectQuestion
from winnow.analytics.program import run_plain
from winnow.analytics.question import Question
from winnow.analytics.stats.statistics_question import StatisticsQuestion
from winnow.analytics.trees.trees_question import TreesQuestion
from winnow.core import AnyEvent, ConfigError, RoundFinished, RunError
from winnow.deploy.client.connection import Connection
from winnow.runs import RunFolder

SITES = ("east", "north", "west")
BEDS = """
[tables.beds]
file = "stays.csv"
columns = { age = { level = "protected", bounds = [0, %d] } }
"""
PEOPLE = """
[tables.people]
file = "people.csv"
columns = { id = { level = "private", key = true, type = "text" } }
"""
deployed = pytest.mark.slow(part="deploy")


def people(number: int) -> list[str]:
    return [f"patient-{place:09d}" for place in range(15 * number, 15 * number + 40)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TableWorld:
    world = TableWorld(tmp_path_factory.mktemp("tables"), SITES)
    for number, site in enumerate(SITES):
        tables = SECTION + BEDS % (120 if site == "west" else 110) + PEOPLE
        world.configure(site, stays(number), 'results = "found"\n' + tables)
        (world.kit(site) / "people.csv").write_text("\n".join(["id", *people(number)]) + "\n")
    world.allow(
        RULE.replace('["stays"]', '["stays", "beds", "people"]').replace('"correlation"', '"fit", "match", "trees"')
    )
    return world


@pytest.fixture(scope="module")
def connection(world: TableWorld) -> Iterator[Connection]:
    with running(world) as connection:
        yield connection


def pooled(world: TableWorld, question: Question) -> object:
    terms = world.terms(question)
    return run_plain(lambda: question.program(terms), [world.table(site) for site in terms.owners])


def test_the_answer_is_that_of_the_pooled_rows(world: TableWorld, connection: Connection, tmp_path: Path) -> None:
    question = StatisticsQuestion(table="stays", by=("ward",), histograms=4)
    kinds: list[str] = []
    answer = connection.ask(question, on_event=lambda event: kinds.append(event.kind), folder=tmp_path / "run")
    assert answer.values == pooled(world, question)
    assert answer.owners == SITES
    assert (kinds.count("answered"), "released" in kinds) == (1, True)
    assert json.loads((tmp_path / "run" / "answer.json").read_bytes()) == answer.values
    assert RunFolder.open(tmp_path / "run").label.kind == "statistics"


@deployed
def test_a_fit_is_that_of_the_pooled_rows(world: TableWorld, connection: Connection) -> None:
    question = FitQuestion(table="stays", model="linear", formula="cost ~ age + ward")
    assert connection.ask(question).values == pooled(world, question)


@deployed
@pytest.mark.parametrize("target", ["ward", "cost"])
def test_trees_are_those_of_the_pooled_rows(world: TableWorld, connection: Connection, target: str) -> None:
    question = TreesQuestion(table="stays", target=target, rounds=3, depth=3, holdout=0.2)
    assert connection.ask(question).values == pooled(world, question)


@deployed
def test_a_site_and_the_server_that_are_killed_among_trees_change_nothing(tmp_path: Path) -> None:
    """The site's keys of masks are gone with it: the owners agree on new ones, and the tree begins again."""
    world = TableWorld(tmp_path, ("east", "north", "west"))
    world.allow(RULE.replace('"correlation"', '"trees"'))
    question = TreesQuestion(table="stays", target="cost", rounds=12, depth=3)
    restarts = {5: "north", 8: "server"}

    def restart(event: AnyEvent) -> None:
        if isinstance(event, RoundFinished) and event.round in restarts:
            name = restarts.pop(event.round)
            world.kill(name)
            world.start(name)

    with running(world) as connection:
        answer = connection.ask(question, on_event=restart, timeout=120)
    assert answer.values == pooled(world, question)
    assert not restarts


@deployed
def test_sites_keep_the_keys_that_they_have_in_common(world: TableWorld, connection: Connection) -> None:
    question = IntersectQuestion(table="people", key="id", between=("west", "north"))
    assert connection.ask(question, owners=("west", "north")).values["size"] == 25
    common = sorted({*people(2)} & {*people(1)})

    def kept(site: str) -> list[list[str]]:
        return [file.read_text().split() for file in (world.kit(site) / "found").glob("*/common.txt")]

    eventually(lambda: kept("west") == [common], "the asking site keeps what it found")
    assert kept("north") == []  # it did not share
    told = b"".join(path.read_bytes() for path in world.kit("server").rglob("*") if path.is_file())
    assert told
    assert not [key for key in common if key.encode() in told]


@deployed
def test_the_command_asks_organisations(
    world: TableWorld, connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    done = call(capsys, "stats", "stays", "--columns", "age,cost", "--kit", world.kit("ana"), "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out) == pooled(world, StatisticsQuestion(table="stays", columns=("age", "cost")))
    listed = call(capsys, "jobs", "--kit", world.kit("ana"))
    assert "statistics-stays" in listed.out


@deployed
def test_an_owner_that_refuses_is_named_with_its_reason(world: TableWorld, connection: Connection) -> None:
    with pytest.raises(ConfigError, match=r"no site offers a table called 'stay'; did you mean 'stays'\?"):
        connection.ask(StatisticsQuestion(table="stay"))
    with pytest.raises(ConfigError, match=r"no site called 'nort' has ever connected; did you mean 'north'\?"):
        connection.ask(StatisticsQuestion(table="stays"), owners=["nort", "south"])
    world.allow(NOISE_RULE, "north")
    try:
        with pytest.raises(RunError) as error:
            connection.ask(StatisticsQuestion(table="stays"))
        assert str(error.value) == (
            "north refuses: questions about table 'stays' are answered with noise only here; add --epsilon"
        )
        first = connection.ask(StatisticsQuestion(table="stays", columns=("age",), epsilon=3.9))
        assert first.values["epsilon"] == 3.9
        with pytest.raises(RunError, match=r"^north refuses: ε 2 is too much: 0\.\d+ of 4 is left for ana at north$"):
            connection.ask(StatisticsQuestion(table="stays", columns=("age",), epsilon=2.0))
    finally:
        world.allow(RULE.replace('["stays"]', '["stays", "beds"]'))
    assert [job.status for job in connection.jobs()].count("aborted") >= 2, "nothing waits for ever"


@deployed
def test_declarations_that_differ_are_named(connection: Connection) -> None:
    with pytest.raises(RunError, match=r"east and west disagree on column 'age': bounds \[0, 110\] and \[0, 120\]"):
        connection.ask(StatisticsQuestion(table="beds"))


@deployed
def test_an_owner_that_does_not_answer_is_named(world: TableWorld, connection: Connection) -> None:
    silent = world.processes["west"].pid
    os.kill(silent, signal.SIGSTOP)
    try:
        with pytest.raises(RunError, match="west did not answer within 5 seconds; ask without them"):
            connection.ask(StatisticsQuestion(table="stays"), timeout=5)
    finally:
        os.kill(silent, signal.SIGCONT)
    eventually(lambda: all(site.connected for site in connection.sites()))
    try:
        with pytest.raises(RunError, match="west"):
            connection.ask(
                StatisticsQuestion(table="stays"), timeout=5, on_event=lambda event: os.kill(silent, signal.SIGSTOP)
            )
    finally:
        os.kill(silent, signal.SIGCONT)
    assert connection.jobs()[-1].status in ("aborted", "failed")
    answer = connection.ask(StatisticsQuestion(table="stays", columns=("age",)), owners=("east", "north"))
    assert answer.owners == ("east", "north")


@deployed
def test_a_helper_computes_for_two_owners_where_its_policy_says_so(tmp_path: Path) -> None:
    world = TableWorld(tmp_path, ("east", "north", "trusted"))
    world.configure("trusted", "", "", "helper = true\n")
    question = StatisticsQuestion(table="stays", by=("ward",))
    computed: set[tuple[int, ...]] = set()

    def on_event(event: AnyEvent) -> None:
        if isinstance(event, RoundFinished):
            computed.add(tuple(sorted(event.aggregated)))

    with running(world) as connection:
        answer = connection.ask(question, owners=("east", "north", "trusted"), on_event=on_event)
        world.sites = ("east", "north")
        assert answer.values == pooled(world, question)
        assert answer.owners == ("east", "north")
        assert computed == {(0, 1, 2)}
        world.allow("helper = false\n", "trusted")
        with pytest.raises(RunError, match=r"^trusted refuses: lead ana of Institute may not ask questions here$"):
            connection.ask(question, owners=("east", "north", "trusted"))
