"""Joins by distance of places that one owner tells and people that others keep: DuckDB's answers, overlaps hidden."""

from typing import Any

import numpy as np
import pyarrow as arrow
import pytest

from place_tables import (
    answer_about_places,
    owners_of_places,
    place_rows,
    pooled_places,
    random_place_statement,
)
from statistics_tables import recorded
from test_query import agree, by_key, plain
from winnow.analytics.program import run_plain
from winnow.analytics.question import merge_terms, read_question
from winnow.analytics.simulate import ask_owners
from winnow.core import ConfigError, DataError

POOLED = place_rows(700, 7, seed=1)
NEAREST = "LATERAL (SELECT * FROM people p WHERE age < 90 ORDER BY {} LIMIT 25) n"
STATEMENTS = [
    "SELECT s.name AS key0, COUNT(*) AS n0, AVG(age) AS n1 FROM stations s JOIN people p ON DWITHIN(s.x, s.y, p.x, "
    "p.y, 3) GROUP BY s.name",
    "SELECT s.kind AS key0, ill AS key1, COUNT(*) AS n0, SUM(cost) AS n1, CORR(age, cost) AS n2 FROM people p JOIN "
    "stations s ON DWITHIN(s.x, s.y, p.x, p.y, s.reach) WHERE age > 30 GROUP BY 1, 2",
    "SELECT COUNT(*) AS n0, STDDEV(age) AS n1 FROM people p, stations s WHERE KM(p.x, p.y, s.x, s.y) < 250 AND s.reach "
    "> 2",
    "SELECT s.name AS key0, COUNT(*) AS n0, AVG(n.age) AS n1, SUM(n.cost) FILTER (WHERE n.ill) AS n2 FROM stations s "
    f"CROSS JOIN {NEAREST.format('DISTANCE(s.x, s.y, p.x, p.y)')} GROUP BY s.name",
    "SELECT COUNT(*) AS n0, MAX(n.age) AS n1 FROM stations s JOIN "
    f"{NEAREST.format('KM(p.x, p.y, s.x, s.y)')} ON TRUE WHERE s.kind = 'bus'",
    "SELECT p.ill AS key0, COUNT(*) AS n0 FROM people p LEFT JOIN stations s ON p.age < s.reach GROUP BY 1",
]


def check(sql: str, answer: dict[str, Any], pooled: dict[str, arrow.Table]) -> None:
    expected = [tuple(map(plain, row)) for row in pooled_places(sql, pooled)]
    told = [tuple(row.values()) for row in answer["rows"]]
    keys = sum(name.startswith("key") for name in answer["columns"])
    assert len(told) == len(expected), sql
    for own, other in zip(by_key(told, keys), by_key(expected, keys), strict=True):
        assert all(
            agree(one, two, name, searched=False) for name, one, two in zip(answer["columns"], own, other, strict=True)
        ), (sql, own, other)


@pytest.mark.parametrize("sql", STATEMENTS)
@pytest.mark.parametrize("owners", [1, 4])
def test_joins_by_distance_are_answered_as_by_duckdb(sql: str, owners: int) -> None:
    check(sql, answer_about_places(sql, POOLED, owners=owners), POOLED)


@pytest.mark.slow(part="science")
def test_a_hundred_random_joins_by_distance_are_answered_as_by_duckdb() -> None:
    for seed in range(100):
        rng = np.random.default_rng(seed)
        pooled = place_rows(300, int(rng.integers(2, 9)), seed)
        sql = random_place_statement(rng)
        check(sql, answer_about_places(sql, pooled, owners=int(rng.integers(1, 5)), seed=seed), pooled)


@pytest.mark.parametrize("sql", [STATEMENTS[0], STATEMENTS[3]])
def test_owners_who_compute_in_shares_tell_the_same(sql: str) -> None:
    question = read_question({"kind": "query", "sql": sql})
    tables, terms = owners_of_places(question, POOLED, 3, 10)
    shared, alone = ask_owners(question, tables, terms), answer_about_places(sql, POOLED, minimum=10)
    assert shared == alone
    assert shared["left_out"]


def test_rows_that_are_equal_are_told_as_often_as_there_are() -> None:
    twice = {**POOLED, "stations": arrow.concat_tables([POOLED["stations"], POOLED["stations"].slice(0, 3)])}
    check(STATEMENTS[0], answer_about_places(STATEMENTS[0], twice), twice)


# Overlaps -------------------------------------------------------------------------------------------------------------


def near_places(shift: float, count: int = 2) -> arrow.Table:
    """Stations next to each other: what one has in reach, the next has but for few."""
    return arrow.table(
        {
            "name": [f"station {place}" for place in range(count)],
            "x": [shift * place for place in range(count)],
            "y": [0.0] * count,
            "reach": [5.0] * count,
            "kind": ["bus"] * count,
            "beds": [1] * count,
        }
    )


def opened_about(sql: str, pooled: dict[str, arrow.Table], minimum: int = 10) -> tuple[Any, list[tuple[str, Any]]]:
    question = read_question({"kind": "query", "sql": sql})
    tables, terms = owners_of_places(question, pooled, 3, minimum)
    opened: list[tuple[str, Any]] = []
    merged = merge_terms(question, terms)
    return run_plain(lambda: recorded(question.program(merged), opened), list(tables.values())), opened


@pytest.mark.parametrize("shift", [0.05, 0.3, 3.0])
@pytest.mark.parametrize("count", [2, 4])
def test_numbers_of_two_places_never_differ_by_a_few_people(shift: float, count: int) -> None:
    """An owner that puts stations next to each other, to tell who is between their circles."""
    pooled = {**POOLED, "stations": near_places(shift, count)}
    answer, opened = opened_about(STATEMENTS[0], pooled)
    told = {row["key0"] for row in answer["rows"]}
    inside = {
        name: {row[0] for row in pooled_places(sql, pooled)}
        for name in told
        for sql in [
            f"SELECT secret FROM stations s JOIN people p ON DWITHIN(s.x, s.y, p.x, p.y, 3) WHERE s.name = '{name}'"
        ]
    }
    people = set[str]().union(*inside.values())
    parts: dict[tuple[bool, ...], int] = {}
    for person in people:
        where = tuple(person in inside[name] for name in sorted(told))
        parts[where] = parts.get(where, 0) + 1
    assert told
    assert min(parts.values()) >= 10
    (sums,) = [values for label, values in opened if label == "sums"]
    assert len(sums) <= 3 * len(told)  # of groups that are hidden nothing is opened
    assert answer["overlapping"] == answer["left_out"] == count - len(told)


REFUSED = [
    (
        "SELECT SUM(s.reach) FROM stations s JOIN people p ON DWITHIN(s.x, s.y, p.x, p.y, 3)",
        "SUM: column 'reach' is of",
    ),
    (
        "SELECT COUNT(*) FILTER (WHERE s.kind = 'bus') FROM stations s JOIN people p ON DWITHIN(s.x, s.y, p.x, p.y, 3)",
        "column 'kind' is of s, whose rows all owners learn; it may stand in ON, WHERE and GROUP BY",
    ),
    ("SELECT COUNT(*) FROM stations s JOIN people p ON DWITHIN(s.x, s.y, p.x, p.y, s.beds)", "has no table"),
    (
        "SELECT COUNT(*) FROM people s CROSS JOIN LATERAL (SELECT * FROM stations p ORDER BY KM(s.x, s.y, p.x, p.y) "
        "LIMIT 25) n",
        "s: the nearest rows are found of public places",
    ),
    (f"SELECT COUNT(*) FROM stations s LEFT JOIN {NEAREST.format('KM(s.x, s.y, p.x, p.y)')} ON TRUE", "takes CROSS"),
    (f"SELECT COUNT(*) FROM stations s CROSS JOIN {NEAREST.format('p.age')}", "LATERAL finds the nearest rows"),
    (
        f"SELECT COUNT(*)\nFROM stations s CROSS JOIN {NEAREST.format('KM(s.x, s.y, p.x, p.y)')}\nWHERE n.age > 3",
        r"write conditions on the rows into LATERAL \(line 3\)",
    ),
    (
        f"SELECT COUNT(*) FROM stations s CROSS JOIN {NEAREST.format('KM(s.x, s.y, p.x, p.y)')} CROSS JOIN people q",
        "LATERAL stands alone",
    ),
    ("SELECT COUNT(*) FROM stations s CROSS JOIN LATERAL (SELECT x FROM people p LIMIT 3) n", "ORDER BY DISTANCE"),
]


@pytest.mark.parametrize(("sql", "reason"), REFUSED)
def test_what_cannot_be_joined_by_distance_is_refused_by_name(sql: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        answer_about_places(sql, POOLED)


def test_noise_and_small_numbers_of_nearest_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match="LIMIT 25 in LATERAL: no number is told about fewer than 30 rows"):
        answer_about_places(STATEMENTS[3], POOLED, minimum=30)
    question = read_question({"kind": "query", "sql": STATEMENTS[0], "epsilon": 1.0})
    tables, terms = owners_of_places(question, POOLED, 2, 10)
    with pytest.raises(ConfigError, match="with noise a statement names one table"):
        run_plain(lambda: question.program(merge_terms(question, terms)), list(tables.values()))
    with pytest.raises(ConfigError, match="forbids nearest"):
        answer_about_places(STATEMENTS[3], POOLED, allow=("aggregate",))


def test_too_many_places_and_rows_of_a_wrong_form_are_one_line() -> None:
    many = {**POOLED, "stations": near_places(0.001, 201)}
    with pytest.raises(DataError, match="of 200 places at most; here they are 201"):
        answer_about_places(STATEMENTS[3], many)
    absurd = POOLED["stations"].set_column(1, "x", arrow.array([float("nan"), 1e308, -1e308, 0, 1, 2, float("inf")]))
    answer = answer_about_places(STATEMENTS[0], {**POOLED, "stations": absurd})
    assert all(row["n0"] > 0 for row in answer["rows"])


def test_explain_says_which_rows_all_learn() -> None:
    question = read_question({"kind": "query", "sql": STATEMENTS[3]})
    _, terms = owners_of_places(question, POOLED, 2, 10)
    lines = "\n".join(question.explained(merge_terms(question, terms)))  # type: ignore[attr-defined]
    assert "1  from agency" in lines
    assert "owners, server: all rows of stations, whatever WHERE says: name, x, y" in lines
    assert "how far the last of the nearest 25 of each place is" in lines
    assert "beds" not in lines


def test_bounds_hold_for_what_is_told() -> None:
    wide = POOLED["stations"].set_column(1, "x", arrow.array([1e6] * 7))
    answer = answer_about_places(
        "SELECT COUNT(*) AS n0 FROM stations s JOIN people p ON s.x > 10.5", {**POOLED, "stations": wide}
    )
    assert answer["rows"] == [{"n0": 0}]
