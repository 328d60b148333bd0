"""Questions between organisations: a server and three agents as processes give the answer of pooled rows."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from table_world import TableWorld, running

from winnow.analytics.program import run_plain
from winnow.analytics.stats.question import StatisticsQuestion
from winnow.deploy.client.connection import Connection

SITES = ("east", "north", "west")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TableWorld:
    return TableWorld(tmp_path_factory.mktemp("tables"), SITES)


@pytest.fixture(scope="module")
def connection(world: TableWorld) -> Iterator[Connection]:
    with running(world) as connection:
        yield connection


def test_the_answer_is_that_of_the_pooled_rows(world: TableWorld, connection: Connection, tmp_path: Path) -> None:
    question = StatisticsQuestion(table="stays", by=("ward",), histograms=4)
    told: list[str] = []
    answer = connection.ask(question, on_line=told.append)
    terms = world.terms(question)
    expected = run_plain(lambda: question.program(terms), [world.table(site) for site in terms.owners])
    assert answer.values == expected
    assert answer.owners == SITES
