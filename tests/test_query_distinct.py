"""COUNT(DISTINCT key) and HISTOGRAM: as DuckDB counts over all rows, and nothing of the few."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet

from query_tables import DECLARATION, answer_of, divided, pooled_answer, pooled_rows, terms_of
from winnow.analytics.permissions import PERMISSIONS
from winnow.analytics.program import CountDistinct, run_plain
from winnow.analytics.question import merge_terms, read_question
from winnow.analytics.simulate import ask_owners, noted
from winnow.analytics.sql.query_answer import QueryAnswer
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import ConfigError, DataError

PATIENTS = "SELECT outcome, COUNT(DISTINCT patient) AS people, COUNT(*) AS n FROM stays GROUP BY outcome"


def by_name(answer: Any) -> dict[Any, Any]:
    return {next(iter(row.values())): tuple(row.values())[1:] for row in answer["rows"]}


@pytest.mark.parametrize("owners", [2, 4])
def test_different_keys_are_counted_as_by_duckdb(owners: int) -> None:
    rows = pooled_rows(1500, seed=owners)
    found = by_name(answer_of(PATIENTS, divided(rows, owners, seed=owners), minimum=1))
    assert found == {row[0]: row[1:] for row in pooled_answer(PATIENTS, rows)}


def test_owners_who_hide_their_keys_count_the_same() -> None:
    rows = pooled_rows(260, seed=3, missing=0.1)
    tables = {f"owner {place}": each for place, each in enumerate(divided(rows, 3, seed=3))}
    sql = "SELECT COUNT(DISTINCT patient) AS people FROM stays WHERE age < 60"
    answer = ask_owners(read_question({"kind": "query", "sql": sql}), tables, terms_of(3))
    assert [tuple(row.values()) for row in answer["rows"]] == pooled_answer(sql, rows)


def few_people(owners: int, people: int) -> list[OwnerTable]:
    """Every owner has 40 rows, all of the same few people."""
    rows = pooled_rows(40 * owners, seed=5, missing=0.0)
    place = rows.column_names.index("patient")
    rows = rows.set_column(place, "patient", arrow.array([f"p{i % people}" for i in range(len(rows))]))
    return [OwnerTable(DECLARATION, rows.slice(40 * owner, 40)) for owner in range(owners)]


@pytest.mark.parametrize(("people", "told"), [(9, None), (10, 10)])
def test_fewer_people_than_the_minimum_are_never_counted(people: int, told: int | None) -> None:
    question = read_question({"kind": "query", "sql": "SELECT COUNT(DISTINCT patient) AS n FROM stays"})
    terms, steps = merge_terms(question, terms_of(3)), list[Any]()
    answer = run_plain(lambda: noted(question.program(terms), steps), few_people(3, people))
    assert answer["rows"] == [{"n": told}]
    assert answer["hidden_values"] == (told is None)
    assert any(isinstance(step, CountDistinct) for step in steps) == (told is not None)


@pytest.mark.parametrize(
    ("sql", "line"),
    [
        ("SELECT COUNT(DISTINCT age) FROM stays", "COUNT(DISTINCT age) counts the values of one column that is a key"),
        ("SELECT COUNT(DISTINCT patient, age) FROM stays", "counts the values of one column that is a key"),
        ("SELECT COUNT(DISTINCT UPPER(patient)) FROM stays", "column 'patient' is private"),
        ("SELECT SUM(DISTINCT age) FROM stays", "SUM(DISTINCT …) is not supported"),
        ("SELECT COUNT(DISTINCT patient) FILTER (WHERE well) FROM stays", "write the condition into WHERE"),
        ("SELECT COUNT(DISTINCT patient) FROM stays TABLESAMPLE BERNOULLI(10 PERCENT)", "of a sample"),
        ("SELECT HISTOGRAM(age) FROM stays", "the upper edges of its bins"),
        ("SELECT HISTOGRAM(age, [2, 1]) FROM stays", "must grow"),
        ("SELECT HISTOGRAM(age, [x]) FROM stays", "which are numbers"),
        ("SELECT HISTOGRAM(age, []) FROM stays", "1 to 60 edges"),
        ("SELECT HISTOGRAM(age, [1]) + 1 FROM stays", "stands alone in SELECT"),
        ("SELECT COUNT(*) FROM stays HAVING HISTOGRAM(age, [1]) IS NULL", "stands alone in SELECT"),
        ("SELECT HISTOGRAM(patient, [1]) FROM stays", "column 'patient' is private"),
        ("SELECT MAP(['a'], [COUNT(*)]) FROM stays", "MAP() is not supported"),
        ("SELECT [COUNT(*)] FROM stays", "ARRAY() is not supported"),
    ],
)
def test_what_cannot_be_counted_is_refused_in_one_line(sql: str, line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        answer_of(sql, divided(pooled_rows(100, seed=1), 2, seed=1))
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


def test_counting_keys_needs_the_permission_to_match() -> None:
    question = read_question({"kind": "query", "sql": PATIENTS})
    with pytest.raises(ConfigError, match="owner 0 forbids match on table 'stays'"):
        merge_terms(question, terms_of(2, allow=tuple(each for each in PERMISSIONS if each != "match")))
    noisy = read_question({"kind": "query", "sql": PATIENTS, "epsilon": 1.0})
    with pytest.raises(ConfigError, match=r"COUNT\(DISTINCT …\) cannot be told with noise"):
        run_plain(lambda: noisy.program(merge_terms(noisy, terms_of(2))), divided(pooled_rows(50, 1), 2, 1))


def test_too_many_groups_of_keys_are_refused() -> None:
    rows = pooled_rows(3000, seed=8)
    sql = "SELECT age, ward, COUNT(DISTINCT patient) FROM (SELECT * FROM stays) GROUP BY age, ward"
    declared = DECLARATION.model_copy(
        update={"columns": DECLARATION.columns | {"age": DECLARATION.columns["ward"].model_copy(update={"type": None})}}
    )
    tables = [OwnerTable(declared, each.rows) for each in divided(rows, 2, seed=8)]
    with pytest.raises(DataError, match="at most 100 can be counted"):
        answer_of(sql, tables, minimum=1)


# HISTOGRAM ------------------------------------------------------------------------------------------------------------

BINS = "SELECT ward, HISTOGRAM(age, [18, 40, 65.5]) AS ages FROM stays GROUP BY ward ORDER BY ward NULLS LAST"


def test_bins_hold_as_many_rows_as_duckdb_counts(tmp_path: Path) -> None:
    rows = pooled_rows(3000, seed=4)
    answer = QueryAnswer(answer_of(BINS, divided(rows, 3, seed=4), minimum=1))
    expected = {
        ward: {str(edge).removesuffix(".0") if edge < 100 else "above": count for edge, count in bins.items()}
        for ward, bins in pooled_answer(BINS.replace("[18", "[18.0").replace("age,", "age::DOUBLE,"), rows)
    }
    assert {row["ward"]: row["ages"] for row in answer.rows} == expected
    written = parquet.read_table(answer.write(tmp_path / "a.parquet")).to_pylist()
    assert {row["ward"]: dict(row["ages"]) for row in written} == expected
    answer.write(tmp_path / "a.csv")
    assert json.dumps(expected["cardiac"]).replace('"', '""') in (tmp_path / "a.csv").read_text()


def test_a_small_bin_is_hidden_and_does_not_follow_from_the_others() -> None:
    rng = np.random.default_rng(6)
    rows = pooled_rows(300, seed=6, missing=0.0)
    ages = np.where(np.arange(300) < 4, 100, rng.integers(0, 60, 300))
    rows = rows.set_column(rows.column_names.index("age"), "age", arrow.array(ages))
    sql = "SELECT COUNT(*) AS n, HISTOGRAM(age, [20, 40, 60, 80]) AS ages FROM stays"
    [row] = answer_of(sql, divided(rows, 3, seed=6))["rows"]
    told = [each for each in row["ages"].values() if each is not None]
    assert row["ages"]["above"] is None
    assert row["ages"]["80"] == 0
    assert row["n"] - sum(told) >= 10
