"""Joins of two owners' rows by distance, where neither tells its places: DuckDB's answers, and nothing of few rows."""

from typing import Any

import numpy as np
import pytest

from near_tables import near_answer, near_owners, near_rows, pooled_near, random_near_statement
from statistics_tables import recorded
from test_query import agree, by_key, plain
from winnow.analytics.program import run_plain
from winnow.analytics.question import merge_terms, read_question
from winnow.analytics.simulate import ask_owners
from winnow.core import ConfigError

POOLED = near_rows(150, seed=1)
JOIN = "FROM crimes JOIN lamps ON DWITHIN(ax, ay, bx, by, 6)"
GROUPED = f"SELECT ak AS key0, COUNT(*) AS n0, AVG(bw) AS n1, SUM(bv) AS n2 {JOIN} GROUP BY 1"


def check(sql: str, answer: dict[str, Any]) -> None:
    expected = [tuple(map(plain, row)) for row in pooled_near(sql, POOLED)]
    told = [tuple(row.values()) for row in answer["rows"]]
    keys = sum(name.startswith("key") for name in answer["columns"])
    assert len(told) == len(expected), sql
    for own, other in zip(by_key(told, keys), by_key(expected, keys), strict=True):
        for name, one, two in zip(answer["columns"], own, other, strict=True):
            assert agree(one, two, name, searched=False), (sql, name, one, two)


@pytest.mark.parametrize("seed", range(8))
def test_rows_at_whole_numbers_are_joined_as_by_duckdb(seed: int) -> None:
    sql = random_near_statement(np.random.default_rng(seed))
    check(sql, near_answer(sql, POOLED))


@pytest.mark.slow(part="science")
def test_a_hundred_and_fifty_random_joins_by_distance_are_answered_as_by_duckdb() -> None:
    for seed in range(100, 250):
        sql = random_near_statement(np.random.default_rng(seed))
        check(sql, near_answer(sql, POOLED))


def test_owners_who_compute_in_shares_tell_the_same_and_match_nothing() -> None:
    question = read_question({"kind": "query", "sql": GROUPED})
    tables, terms = near_owners(POOLED, question.table, 10)
    learnt: list[str] = []
    shared = ask_owners(question, tables, terms, on_match=lambda owner, identifiers: learnt.append(owner))
    assert shared == near_answer(GROUPED, POOLED, minimum=10)
    assert shared["left_out"]
    assert not learnt


def test_numbers_that_are_not_whole_are_joined_to_a_stated_precision() -> None:
    """Every pair that is clearly nearer counts, and none that is clearly farther."""
    pooled = near_rows(200, seed=2, whole=False)
    sql = "SELECT COUNT(*) AS n FROM crimes JOIN lamps ON DWITHIN(ax, ay, bx, by, {})"
    answer = near_answer(sql.format(7), pooled)
    precision = answer["distance_precision"]
    assert 0 < precision < 0.3
    least, most = (pooled_near(sql.format(7 + each), pooled)[0][0] for each in (-precision, precision))
    assert least <= answer["rows"][0]["n"] <= most
    assert near_answer(sql.format(7), POOLED)["distance_precision"] == 0


@pytest.mark.parametrize("minimum", [2, 10, 30])
def test_groups_with_few_rows_of_either_owner_are_not_opened(minimum: int) -> None:
    """Many pairs of one row are not many rows."""
    question = read_question({"kind": "query", "sql": GROUPED})
    tables, terms = near_owners(POOLED, question.table, minimum)
    opened: list[tuple[str, Any]] = []
    merged = merge_terms(question, terms)
    answer = run_plain(lambda: recorded(question.program(merged), opened), list(tables.values()))
    numbered = "(SELECT *, row_number() OVER () AS {} FROM {})"
    left, right = numbered.format("i", "crimes"), numbered.format("j", "lamps")
    counts = "SELECT ak, COUNT(DISTINCT i), COUNT(DISTINCT j)"
    rows = pooled_near(f"{counts} FROM {left} JOIN {right} ON DWITHIN(ax, ay, bx, by, 6) GROUP BY 1", POOLED)
    enough = {key for key, left, right in rows if min(left, right) >= minimum}
    assert {row["key0"] for row in answer["rows"]} == enough
    sums = [values for label, values in opened if label == "sums"]
    assert all(len(values) <= 5 * len(enough) for values in sums)


def test_one_place_with_many_rows_of_its_owner_tells_nothing_of_who_is_alone_there() -> None:
    """An owner that puts many rows on one spot, to learn of the other's single row near it."""
    lonely = {
        "crimes": POOLED["crimes"].slice(0, 60).set_column(0, "ax", [[3] * 60]).set_column(1, "ay", [[3] * 60]),
        "lamps": POOLED["lamps"].set_column(0, "bx", [[90] * 299 + [3]]).set_column(1, "by", [[90] * 299 + [3]]),
    }
    answer = near_answer(f"SELECT COUNT(*) AS n, SUM(bv) AS s {JOIN}", lonely, minimum=10)
    assert (answer["rows"], answer["left_out"]) == ([], 1)


REFUSED = [
    (f"SELECT MAX(av) {JOIN}", "MAX of a join by distance between owners is not supported"),
    (f"SELECT CORR(av, bv) {JOIN}", "CORR of a join by distance between owners"),
    (f"SELECT MEDIAN(av) {JOIN}", "MEDIAN of a join between owners is not supported"),
    (f"SELECT SUM(av * bv) {JOIN}", "its columns are at two owners"),
    ("SELECT COUNT(*) FROM crimes JOIN lamps ON DWITHIN(ax, ay, bx, by, aw)", "compared with a number"),
    ("SELECT COUNT(*) FROM crimes JOIN lamps ON DWITHIN(ax, by, bx, ay, 3)", "takes two columns of each: a.x, a.y"),
    ("SELECT COUNT(*) FROM crimes JOIN lamps ON DWITHIN(ax + 1, ay, bx, by, 3)", "takes two columns of each"),
    ("SELECT COUNT(*) FROM crimes JOIN lamps ON KM(ax, ay, bx, by) < 3", "a distance between rows of two owners"),
    ("SELECT COUNT(*) FROM crimes JOIN lamps ON DISTANCE(ax, ay, bx, by) > 3", "a distance between rows of two owners"),
    ("SELECT COUNT(*) FROM crimes JOIN lamps ON av = bv AND DWITHIN(ax, ay, bx, by, 3)", "by a key or by distance"),
    ("SELECT COUNT(*) FROM crimes LEFT JOIN lamps ON DWITHIN(ax, ay, bx, by, 3)", "LEFT JOIN between owners"),
    (
        "SELECT COUNT(*) FROM crimes CROSS JOIN LATERAL (SELECT * FROM lamps ORDER BY DISTANCE(ax, ay, bx, by) LIMIT "
        "3) n",
        "crimes: the nearest rows are found of public places",
    ),
]


@pytest.mark.parametrize(("sql", "reason"), REFUSED)
def test_what_cannot_be_joined_is_refused_by_name(sql: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        near_answer(sql, POOLED)


def test_owners_have_to_allow_it_and_explain_says_who_learns_what() -> None:
    with pytest.raises(ConfigError, match="police forbids match"):
        near_answer(GROUPED, POOLED, allow=("aggregate",))
    with pytest.raises(ConfigError, match="police tells only how many rows are joined"):
        near_answer(GROUPED, POOLED, reveal="size")
    question = read_question({"kind": "query", "sql": GROUPED})
    _, terms = near_owners(POOLED, question.table, 10)
    lines = "\n".join(question.explained(merge_terms(question, terms)))  # type: ignore[attr-defined]
    assert "rows >= 10 of each owner within reach of the other's, over 100 × 100 cells" in lines
    assert "nothing of where rows are" in lines
