"""Samples of rows and of owners: estimates that miss by as much as they say."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest

from query_tables import answer_of, divided, pooled_rows, terms_of
from winnow.analytics.permissions import PERMISSIONS
from winnow.analytics.question import merge_terms, read_question
from winnow.analytics.simulate import ask_owners
from winnow.analytics.sql.sampled_sums import _few_owners
from winnow.core import ConfigError

METHODS = ("BERNOULLI", "STRATIFIED", "DISTINCT_VALUES")
NAMES = ("n", "c", "s", "a", "f")
SQL = (
    "SELECT {columns}COUNT(*) AS n, COUNT(age) AS c, SUM(cost) AS s, AVG(cost) AS a, "
    "COUNT(*) FILTER (WHERE age < 50) AS f FROM stays{sample} WHERE x > {low}{group}"
)
GROUPED = {"columns": "outcome, ", "group": " GROUP BY outcome"}
ALL = {"columns": "", "group": ""}


def scores(method: str, part: int, shape: dict[str, str], owners: int, repeats: int) -> dict[str, list[float]]:
    """(estimate − truth)/error of each number in each group, over statements that draw differently."""
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    for seed in range(repeats):
        tables = divided(pooled_rows(3000, seed=50 + seed), owners, seed=seed)
        truth = _rows(answer_of(SQL.format(sample="", low=-9, **shape), tables, minimum=5))
        sampled = SQL.format(sample=f" TABLESAMPLE {method}({part} PERCENT)", low=-9, **shape)
        answer = answer_of(sampled, tables, minimum=5)
        for row, errors in zip(answer["rows"], answer["errors"], strict=True):
            exact = truth[row.get("outcome")]
            for name in NAMES:
                if row[name] is not None and errors[name] > 0:
                    found[name].append((row[name] - exact[name]) / errors[name])
    return found


def _rows(answer: Any) -> dict[Any, Any]:
    return {row.get("outcome"): row for row in answer["rows"]}


@pytest.mark.parametrize("method", METHODS)
def test_estimates_of_rows_miss_by_their_stated_error(method: str) -> None:
    for name, missed in scores(method, 20, GROUPED, 3, 4).items():
        if method != "BERNOULLI" and name == "n":
            assert missed == []  # every group is counted as a whole
            continue
        assert 0.4 < float(np.sqrt(np.mean(np.square(missed)))) < 1.8, name


@pytest.mark.slow(part="science")
@pytest.mark.parametrize("shape", [ALL, GROUPED])
@pytest.mark.parametrize("method", METHODS)
def test_stated_errors_of_rows_are_right(method: str, shape: dict[str, str]) -> None:
    for name, missed in scores(method, 20, shape, 3, 150).items():
        if method != "BERNOULLI" and name == "n":
            continue
        assert abs(float(np.mean(missed))) < 4 / np.sqrt(len(missed)), name
        least = 0.7 if name == "c" else 0.84  # few ages are missing: where none of them is drawn, no error is known
        assert least < float(np.std(missed)) < 1.17, name


@pytest.mark.slow(part="science")
def test_stated_errors_of_owners_are_right() -> None:
    """Ten of twenty owners, whose sizes differ widely."""
    for name, missed in scores("SYSTEM", 50, ALL, 20, 60).items():
        assert 0.7 < float(np.std(missed)) < 1.4, name


def test_a_count_without_an_exception_in_the_sample_has_an_error() -> None:
    """Three of 1,000 rows lack their age: a sample that has none of them must not say that there are none."""
    rows = pooled_rows(1000, seed=1, missing=0)
    ages = arrow.array([None if place in (5, 500, 900) else place % 100 for place in range(1000)])
    pooled = rows.set_column(rows.column_names.index("age"), "age", ages)
    sql = "SELECT COUNT(*) AS n, COUNT(age) AS c FROM stays TABLESAMPLE STRATIFIED({} PERCENT)"
    answer = answer_of(sql.format(10), divided(pooled, 3, seed=1))
    (row,), (errors,) = answer["rows"], answer["errors"]
    assert row["c"] == row["n"] == 1000
    assert errors["n"] == 0
    # p = 102/104 of 100 rows, each of which stands for ten: p(1 − p) · 1000 · 900/100
    assert errors["c"] == pytest.approx(np.sqrt(102 / 104 * 2 / 104 * 9000), rel=0.05)
    everything = answer_of(sql.format(100), divided(pooled, 3, seed=1))
    assert everything["rows"] == [{"n": 1000, "c": 997}]
    assert everything["errors"] == [{"n": 0, "c": 0}]


@pytest.mark.parametrize(
    ("sizes", "factor"),
    [([1] * 10, 1.0792), ([1] * 3, 1.4714), ([98, 1, 1], 2.4015), ([1] * 1000, 1.0007)],
)
def test_few_owners_or_unequal_ones_have_larger_errors(sizes: list[int], factor: float) -> None:
    """Student's t at 0.9 with 9, 2, 1 and 999 degrees of freedom (1.383, 1.886, 3.078, 1.282), over 1.2816."""
    parts = np.array(sizes) / 2000
    assert _few_owners(float(parts.sum()), float((parts**2).sum())) == pytest.approx(factor, abs=2e-4)


def test_some_owners_stand_for_all() -> None:
    tables = divided(pooled_rows(4000, seed=3), 12, seed=3)
    sql = "SELECT COUNT(*) AS n, AVG(cost) AS a FROM stays{} WHERE age > 40"
    truth = answer_of(sql.format(""), tables)["rows"][0]
    (row,), (errors,) = (
        answer_of(sql.format(" TABLESAMPLE SYSTEM(50 PERCENT)"), tables)[each] for each in ("rows", "errors")
    )
    for name in ("n", "a"):
        assert 0 < abs(row[name] - truth[name]) < 4 * errors[name]
    (row,), (errors,) = (
        answer_of(sql.format(" TABLESAMPLE SYSTEM(100 PERCENT)"), tables)[each] for each in ("rows", "errors")
    )
    assert row["n"] == truth["n"]
    assert errors["n"] == 0
    assert row["a"] == pytest.approx(truth["a"])


def test_a_rare_value_is_counted_as_a_whole_by_distinct_values() -> None:
    tables = divided(pooled_rows(1500, seed=4), 2, seed=4)
    sql = "SELECT outcome, COUNT(*) AS n FROM stays{} GROUP BY outcome"
    truth = _rows(answer_of(sql.format(""), tables))
    answer = answer_of(sql.format(" TABLESAMPLE DISTINCT_VALUES(1 PERCENT)"), tables)
    assert 10 < truth["died"]["n"] < 60
    assert _rows(answer)["died"]["n"] == truth["died"]["n"]
    few = _rows(answer_of(sql.format(" TABLESAMPLE STRATIFIED(1 PERCENT)"), tables))
    assert "died" not in few


def test_owners_who_compute_in_shares_give_the_same_estimates() -> None:
    tables = divided(pooled_rows(400, seed=5), 3, seed=5)
    sql = "SELECT outcome, COUNT(*) AS n, AVG(cost) AS a FROM stays TABLESAMPLE STRATIFIED(30 PERCENT) GROUP BY outcome"
    terms = terms_of(3)
    answer = ask_owners(read_question({"kind": "query", "sql": sql}), dict(zip(terms, tables, strict=True)), terms)
    plain = answer_of(sql, tables)
    assert answer["rows"] == plain["rows"]
    assert answer["errors"] == plain["errors"]


@pytest.mark.parametrize(
    ("sql", "line"),
    [
        (
            "SELECT MEDIAN(age) FROM stays TABLESAMPLE STRATIFIED(9 PERCENT)",
            "MEDIAN of a sample takes TABLESAMPLE BERN",
        ),
        ("SELECT MAX(age) FROM stays TABLESAMPLE SYSTEM(50 PERCENT)", "MAX of a sample takes TABLESAMPLE BERNOULLI"),
        (
            "SELECT COUNT(*) FROM stays TABLESAMPLE NONE(9 PERCENT)",
            "takes one of BERNOULLI, STRATIFIED, DISTINCT_VALUES",
        ),
        ("SELECT COUNT(*) FROM stays TABLESAMPLE STRATIFIED(0 PERCENT)", "write at least 0.0001 and at most 100"),
        (
            "SELECT SUM(age) FROM (SELECT * FROM stays TABLESAMPLE STRATIFIED(9 PERCENT) ORDER BY age LIMIT 20)",
            "LIMIT in a subquery cannot be combined",
        ),
        (
            "SELECT COUNT(*) FROM stays TABLESAMPLE SYSTEM(50 PERCENT)",
            "takes 2 of 3 owners; 3 have to take part at least",
        ),
        ("SELECT age FROM stays TABLESAMPLE SYSTEM(50 PERCENT)", "rows can be sampled by TABLESAMPLE BERNOULLI"),
    ],
)
def test_samples_that_tell_nothing_are_refused_in_one_line(sql: str, line: str) -> None:
    question = read_question({"kind": "query", "sql": sql})
    with pytest.raises(ConfigError) as refused:
        next(question.program(replace(merge_terms(question, terms_of(3, rows=9)), least_owners=3)))
    assert line in str(refused.value)


def test_a_sample_of_owners_needs_leave_to_tell_how_they_differ() -> None:
    question = read_question({"kind": "query", "sql": "SELECT COUNT(*) FROM stays TABLESAMPLE SYSTEM(50 PERCENT)"})
    with pytest.raises(ConfigError, match="owner 0 forbids per-owner on table 'stays'"):
        merge_terms(question, terms_of(4, allow=tuple(each for each in PERMISSIONS if each != "per-owner")))
