"""Federated SQL: what owners answer together is what DuckDB says of all their rows, and small groups never appear."""

import json
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from itertools import count
from math import isfinite
from typing import Any

import duckdb
import numpy as np
import pyarrow as arrow
import pytest
import sqlglot

from query_tables import DECLARATION, answer_of, divided, pooled_answer, pooled_rows, random_statement, terms_of
from statistics_tables import recorded
from winnow.analytics.program import Program, run_plain
from winnow.analytics.question import Answer, merge_terms, read_question
from winnow.analytics.simulate import ask_owners
from winnow.analytics.sql.duckdb_engine import connection
from winnow.analytics.sql.public_values import _group, open_public_values
from winnow.analytics.sql.query_answer import QueryAnswer
from winnow.analytics.sql.spatial_functions import expand_spatial
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import ConfigError, DataError, WinnowError

ROWS = pooled_rows(1500, seed=1)
STEP = 50_000 / (1 << 17)
"""Of a search among numbers that are not whole, at the widest bounds of the table."""


def plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, Decimal):
        return float(value)
    return None if isinstance(value, float) and not isfinite(value) else value


def by_key(answer: list[tuple[Any, ...]], keys: int) -> list[tuple[Any, ...]]:
    return sorted(answer, key=lambda row: [(each is None, str(each)) for each in row[:keys]])


def agree(told: Any, expected: Any, name: str, searched: bool) -> bool:
    if told is None or expected is None or isinstance(expected, bool | int | str):
        return bool(told == expected)
    return bool(abs(told - expected) <= (STEP if searched else 1e-6 + 1e-9 * abs(expected)))


def check_against_duckdb(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sql = random_statement(rng)
    tables = divided(ROWS, int(rng.integers(2, 8)), seed)
    answer = answer_of(sql, tables, minimum=1)
    expanded = expand_spatial(sqlglot.parse_one(sql, read="duckdb")).sql("duckdb")
    expected = [tuple(map(plain, row)) for row in pooled_answer(expanded, ROWS)]
    told = [tuple(row.values()) for row in answer["rows"]]
    keys = sum(name.startswith("key") for name in answer["columns"])
    assert len(told) == len(expected), sql
    searched = any(word in sql for word in ("MIN(", "MAX(", "MEDIAN", "QUANTILE"))
    for own, other in zip(by_key(told, keys), by_key(expected, keys), strict=True):
        for name, one, two in zip(answer["columns"], own, other, strict=True):
            assert agree(one, two, name, searched), (sql, name, one, two)


@pytest.mark.parametrize("seed", range(24))
def test_random_statements_are_answered_as_by_duckdb_on_all_rows(seed: int) -> None:
    check_against_duckdb(seed)


@pytest.mark.slow(part="science")
def test_five_hundred_random_statements_are_answered_as_by_duckdb() -> None:
    for seed in range(100, 600):
        check_against_duckdb(seed)


def test_owners_who_compute_in_shares_give_the_same_answer() -> None:
    sql = "SELECT ward, COUNT(*) AS n, AVG(cost) AS c, MAX(age) AS a FROM stays WHERE well GROUP BY ward ORDER BY n"
    tables = divided(ROWS, 3, seed=5)
    question = read_question({"kind": "query", "sql": sql})
    terms = terms_of(3)
    answer = ask_owners(question, dict(zip(terms, tables, strict=True)), terms)
    assert answer == answer_of(sql, tables)
    assert [row["n"] for row in answer["rows"]] == [
        n
        for n, *_ in pooled_answer(
            "SELECT COUNT(*) n FROM stays WHERE well GROUP BY ward HAVING n >= 10 ORDER BY n", ROWS
        )
    ]


@pytest.mark.slow(part="science")
@pytest.mark.parametrize("part", range(5))
def test_a_hundred_random_statements_in_shares_are_what_owners_without_shares_tell(part: int) -> None:
    """Two to five owners, with a minimum that hides groups: every secure step, and not only what it stands for."""
    answered = 0
    for seed in count(1000 * (part + 1)):
        rng = np.random.default_rng(seed)
        sql, owners = random_statement(rng), int(rng.integers(2, 6))
        tables, terms = divided(ROWS, owners, seed), terms_of(owners, minimum=5)
        try:
            alone = answer_of(sql, tables, minimum=5)
        except ConfigError as error:  # refused with a minimum: it does not count
            assert "could" in str(error)  # noqa: PT017 - tell a single row, or leave one
            continue
        question = read_question({"kind": "query", "sql": sql})
        assert ask_owners(question, dict(zip(terms, tables, strict=True)), terms) == alone, sql
        answered += 1
        if answered == 20:
            return


LINE_ITEMS = {
    "l_quantity": {"level": "protected", "type": "integer", "bounds": [1, 50]},
    "l_extendedprice": {"level": "protected", "bounds": [0, 110_000]},
    "l_discount": {"level": "protected", "bounds": [0, 0.1]},
    "l_tax": {"level": "protected", "bounds": [0, 0.08]},
    "l_returnflag": {"level": "protected", "values": ["A", "N", "R"]},
    "l_linestatus": {"level": "public", "type": "text"},
    "l_shipdate": {"level": "protected", "type": "date", "bounds": [8036, 10592]},
}
PRICING = """
SELECT l_returnflag, l_linestatus, SUM(l_quantity) AS sum_qty, SUM(l_extendedprice) AS sum_base_price,
    SUM(l_extendedprice * (1 - l_discount)) AS sum_disc_price,
    SUM(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge, AVG(l_quantity) AS avg_qty,
    AVG(l_extendedprice) AS avg_price, AVG(l_discount) AS avg_disc, COUNT(*) AS count_order
FROM stays WHERE l_shipdate <= DATE '1998-12-01' - INTERVAL '90' DAY
GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus"""
REVENUE = """
SELECT SUM(l_extendedprice * l_discount) AS revenue FROM stays
WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1994-01-01' + INTERVAL '1' YEAR
    AND l_discount BETWEEN 0.06 - 0.01 AND 0.06 + 0.01 AND l_quantity < 24"""


@pytest.mark.parametrize("sql", [PRICING, REVENUE], ids=["1", "6"])
def test_queries_1_and_6_of_tpc_h_are_answered(sql: str) -> None:
    rng, count = np.random.default_rng(8), 4000
    rows = arrow.table(
        {
            "l_quantity": rng.integers(1, 51, count),
            "l_extendedprice": rng.uniform(900, 105_000, count).round(2),
            "l_discount": rng.integers(0, 11, count) / 100,
            "l_tax": rng.integers(0, 9, count) / 100,
            "l_returnflag": rng.choice(["A", "N", "R"], count),
            "l_linestatus": rng.choice(["F", "O"], count),
            "l_shipdate": (rng.integers(8036, 10592, count) * 86_400_000_000).astype("datetime64[us]"),
        }
    )
    declaration = TableDeclaration.model_validate({"columns": LINE_ITEMS})
    tables = [OwnerTable(declaration, rows.slice(start, 1000)) for start in range(0, count, 1000)]
    told = [tuple(row.values()) for row in answer_of(sql, tables)["rows"]]
    expected = pooled_answer(sql, rows)
    assert len(told) == len(expected)
    for own, other in zip(told, expected, strict=True):
        assert own[:2] == other[:2] if len(own) > 2 else True
        assert own[-8:] == pytest.approx(other[-8:], rel=1e-9)


def test_aliases_may_be_called_like_columns_of_winnow_s_own() -> None:
    sql = "SELECT COUNT(*) AS k0, outcome AS g0, SUM(age) AS g0_error FROM stays GROUP BY 2 HAVING k0 > 1 ORDER BY k0"
    told = [tuple(row.values()) for row in answer_of(sql, divided(ROWS, 3, seed=1), minimum=1)["rows"]]
    assert told == pooled_answer(sql, ROWS)


# Small groups --------------------------------------------------------------------------------------------------------


def planted(group: int) -> arrow.Table:
    """Rows of two wards with hundreds of rows and one with a few, of whom all died."""
    wards = ["big"] * 300 + ["large"] * 200 + ["tiny"] * group
    rows = pooled_rows(len(wards), seed=group, missing=0.0)
    rows = rows.set_column(0, "ward", arrow.array(wards))
    outcomes = ["home"] * 300 + ["moved"] * 200 + ["died"] * group
    return rows.set_column(3, "outcome", arrow.array(outcomes))


def opened_by(sql: str, tables: list[OwnerTable]) -> tuple[Answer, list[tuple[str, Any]]]:
    question = read_question({"kind": "query", "sql": sql})
    terms, opened = merge_terms(question, terms_of(len(tables))), list[tuple[str, Any]]()
    program: Callable[[], Program[Answer]] = lambda: recorded(question.program(terms), opened)  # noqa: E731
    return run_plain(program, tables), opened


@pytest.mark.parametrize("group", [1, 4, 9])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT ward, COUNT(*) AS n, SUM(age) AS s FROM stays GROUP BY ward",
        "SELECT outcome, COUNT(*) AS n, AVG(cost) AS c, MAX(age) AS m FROM stays GROUP BY outcome",
        "SELECT COUNT(*) AS n, SUM(age) AS s FROM stays WHERE outcome = 'died'",
        "SELECT COUNT(*) FILTER (WHERE outcome = 'died') AS n FROM stays",
        "SELECT COUNT(*) AS n, COUNT(*) FILTER (WHERE outcome <> 'died') AS alive FROM stays",
        "SELECT COUNT(*) AS n, SUM(CASE WHEN outcome = 'died' THEN 1 ELSE 0 END) AS dead FROM stays",
        "SELECT COUNT(*) AS n, COUNT(NULLIF(outcome, 'died')) AS alive FROM stays",
        "SELECT COUNT(*) AS n, COUNT(k) AS alive FROM (SELECT CASE WHEN outcome <> 'died' THEN 1 END AS k FROM stays)",
        "SELECT COUNT(*) AS n, SUM(CASE WHEN age >= 0 THEN k END) AS dead FROM "
        "(SELECT age, CASE WHEN outcome = 'died' THEN 1 ELSE 0 END AS k FROM stays)",
        "SELECT COUNT(*) FILTER (WHERE outcome = 'home') AS home, COUNT(*) FILTER (WHERE outcome = 'moved') AS moved, "
        "COUNT(*) AS total FROM stays",
        "SELECT COUNT(*) AS n, COUNT(CAST(REPLACED AS TINYINT)) AS alive FROM stays".replace(
            "REPLACED", "CASE WHEN outcome = 'died' THEN 1000 ELSE 1 END"
        ),
    ],
)
def test_nothing_is_told_or_opened_of_a_planted_small_group(group: int, sql: str) -> None:
    rows = planted(group)
    answer, opened = opened_by(sql, divided(rows, 3, seed=group))
    few = {group, 500}  # 500 rows are not in the group: with all 500 + group of them, they would tell
    for row in answer["rows"]:
        told = [each for name, each in row.items() if name in ("n", "alive", "dead")]
        assert not few & set(told)
        assert row.get("ward") != "tiny"
        assert row.get("outcome") != "died"
    counts = [int(each) for label, values in opened if label == "sums" for each in values]
    assert not few & set(counts)
    assert answer["left_out"] + answer["hidden_values"] == 1


def with_cell(rows: arrow.Table, name: str, place: int, cell: Any) -> arrow.Table:
    values = rows.column(name).to_pylist()
    values[place] = cell
    return rows.set_column(rows.column_names.index(name), name, arrow.array(values, rows.column(name).type))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*) AS n, COUNT(*) FILTER (WHERE outcome = 'died') AS d FROM stays WHERE patient = 'only'",
        "SELECT well, COUNT(*) AS n, SUM(CASE WHEN outcome = 'died' THEN 1 ELSE 0 END) AS d FROM stays "
        "WHERE patient = 'only' GROUP BY well",
        "SELECT COUNT(*) AS n, MIN(age) AS a FROM (SELECT * FROM stays WHERE patient = 'only') WHERE outcome = 'died'",
    ],
)
def test_a_statement_about_one_person_opens_the_same_whoever_that_is(sql: str) -> None:
    """Also where nobody is chosen: a private column is no oracle for who is in the table."""
    rows = pooled_rows(300, seed=6, missing=0.0)
    variants = [with_cell(rows, "patient", 7, "only"), rows]
    variants += [with_cell(variants[0], "outcome", 7, each) for each in ("home", "died")]
    opened = [
        [(label, list(values)) for label, values in opened_by(sql, divided(each, 3, seed=6))[1]] for each in variants
    ]
    assert all(each == opened[0] for each in opened)


@pytest.mark.parametrize(
    "number",
    [
        "SUM(CASE WHEN age = 105 THEN cost ELSE 1 END)",
        "MAX(CASE WHEN age = 105 THEN cost ELSE 0 END)",
        "AVG(x + (age = 105)::INTEGER)",
        "SUM(COALESCE(NULLIF(age, 105), 0))",
        "SUM(CASE age WHEN 105 THEN 7 ELSE 3 END)",
        "SUM((CASE WHEN age = 105 THEN true ELSE false END)::INTEGER)",
    ],
)
def test_a_condition_that_chooses_few_rows_hides_the_number(number: str) -> None:
    rows = pooled_rows(300, seed=6, missing=0.0)
    ages = [min(age, 100) for age in rows.column("age").to_pylist()]
    rows = with_cell(rows.set_column(1, "age", arrow.array(ages)), "age", 7, 105)
    sql = f"SELECT COUNT(*) AS n, {number} AS told FROM stays"
    assert answer_of(sql, divided(rows, 3, seed=6))["rows"] == [{"n": 300, "told": None}]
    assert (
        answer_of(sql.replace("105", "30 + 20 * well::INTEGER"), divided(rows, 3, 6), minimum=1)["hidden_values"] == 0
    )


def test_groups_of_the_minimum_and_empty_ones_are_told_as_they_are() -> None:
    answer = answer_of(
        "SELECT ward, COUNT(*) AS n FROM stays GROUP BY ward ORDER BY n", divided(planted(10), 3, seed=1)
    )
    assert [(row["ward"], row["n"]) for row in answer["rows"]] == [("tiny", 10), ("large", 200), ("big", 300)]
    assert answer["left_out"] == 0
    nobody = answer_of("SELECT COUNT(*) AS n, SUM(age) AS s FROM stays WHERE age > 200", divided(ROWS, 3, seed=1))
    assert nobody["rows"] == [{"n": 0, "s": None}]


def test_what_is_opened_has_the_same_form_however_rows_are_divided() -> None:
    sql = "SELECT ward, outcome, COUNT(*) AS n, MEDIAN(cost) AS m FROM stays GROUP BY ward, outcome"
    forms = [
        [(label, len(values)) for label, values in opened_by(sql, divided(ROWS, 4, seed))[1] if "public" not in label]
        for seed in (1, 2)
    ]
    assert forms[0] == forms[1]


def test_public_values_show_nothing_of_what_a_condition_chooses() -> None:
    """The set of values that is opened is that of all rows, though a private column chooses one."""
    sql = (
        "SELECT ward, COUNT(*) AS n FROM (SELECT ward FROM stays WHERE patient = 'p1') WHERE ward <> 'x' GROUP BY ward"
    )
    tables = divided(ROWS, 3, seed=1)
    other = sql.replace("= 'p1'", "= 'nobody'")
    opened = [
        [values.tolist() for label, values in opened_by(each, tables)[1] if "public" in label] for each in (sql, other)
    ]
    assert opened[0] == opened[1]
    assert opened[0]


# Lies and faults -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", [1, -3, 2**40, None])
def test_a_liar_among_public_values_ends_the_question_in_one_line(garbage: int | None) -> None:
    tables = divided(ROWS, 2, seed=1)
    program = open_public_values(lambda table: [(each,) for each in table.rows.column("ward").unique().to_pylist()])
    step = next(program)
    sizes = sum(step.local(table).astype(object) for table in tables)
    step = program.send(sizes)
    honest = sum(step.local(table).astype(object) for table in tables)
    lie = (
        honest
        if garbage is None
        else honest + np.array([garbage if place % 7 == 0 else 0 for place in range(len(honest))])
    )
    if garbage is None:
        with pytest.raises(StopIteration) as ended:
            program.send(lie)
        assert len(ended.value.value) == 5
        return
    with pytest.raises(DataError, match=r"^GROUP BY: [^\n]*$"):
        _answered_with(program, lie, garbage)


@pytest.mark.parametrize("text", [b'["\\ud800"]', b"[" * 400, b"\xff", b'{"a": 1}', b"[1]", b'[["a"]]', b""])
def test_a_public_value_that_is_no_text_is_refused_in_one_line(text: bytes) -> None:
    with pytest.raises(DataError, match=r"^an owner sent a public value that cannot be read$"):
        _group(text)


def _answered_with(program: Program[Any], opened: Any, garbage: int) -> None:
    for _ in range(20):
        step = program.send(opened)
        opened = np.array([garbage] * step.length, object)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "COPY (SELECT 1) TO '/tmp/winnow-test.csv'",
        "ATTACH '/tmp/winnow-test.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SET threads = 8",
        "SELECT * FROM ROWS",
    ],
)
def test_duckdb_reaches_nothing(sql: str) -> None:
    """Though no such statement gets as far as this."""
    with connection() as opened, pytest.raises(duckdb.Error):
        opened.execute(sql)


@pytest.mark.parametrize("cast", ["CAST", "TRY_CAST"])
def test_a_row_on_which_an_expression_fails_is_null_and_no_message_quotes_it(cast: str) -> None:
    tables = divided(ROWS, 3, seed=1)
    answer = answer_of(f"SELECT COUNT(*) AS n FROM stays WHERE {cast}(note AS INTEGER) = 17", tables)
    expected = pooled_answer("SELECT COUNT(*) FROM stays WHERE TRY_CAST(note AS INTEGER) = 17", ROWS)
    assert [(row["n"],) for row in answer["rows"]] == expected


# Samples and noise ---------------------------------------------------------------------------------------------------


def test_a_sample_estimates_with_its_stated_error() -> None:
    tables = divided(pooled_rows(6000, seed=3, missing=0.0), 3, seed=3)
    sql = "SELECT COUNT(*) AS n, SUM(cost) AS s, AVG(age) AS a FROM stays"
    truth = answer_of(sql, tables)["rows"][0]
    answer = answer_of(sql.replace("stays", "stays TABLESAMPLE BERNOULLI(20 PERCENT)"), tables)
    (row,), (errors,) = answer["rows"], answer["errors"]
    for name in ("n", "s", "a"):
        assert 0 < errors[name] < 0.1 * truth[name]
        assert abs(row[name] - truth[name]) < 5 * errors[name]
        assert row[name] != truth[name]


def test_noise_is_as_large_as_it_says() -> None:
    rows = pooled_rows(3000, seed=4, missing=0.0)
    tables = divided(rows, 3, seed=4)
    sql = "SELECT outcome, COUNT(*) AS n, SUM(age) AS s, AVG(cost) AS c, STDDEV(cost) AS d FROM stays GROUP BY 1"
    truth = {row["outcome"]: row for row in answer_of(sql, tables, minimum=1)["rows"]}["home"]
    scores: dict[str, list[float]] = {"n": [], "s": [], "c": []}
    for seed in range(12):
        answer = answer_of(sql, tables, seed=seed, epsilon=1.0)
        for row, errors in zip(answer["rows"], answer["errors"], strict=True):
            for name in scores if row["outcome"] == "home" else ():
                scores[name].append((row[name] - truth[name]) / errors[name])
    for values in scores.values():
        assert 0.4 < float(np.sqrt(np.mean(np.square(values)))) < 1.8


@pytest.mark.parametrize(
    ("sql", "line"),
    [
        ("SELECT MAX(age) FROM stays", "MAX cannot be told with noise; leave it out, or ask without epsilon"),
        (
            "SELECT ward, COUNT(*) FROM stays GROUP BY ward",
            "GROUP BY ward: with noise it needs a list of values; declare values = […]",
        ),
        (
            "SELECT COUNT(*) FROM stays TABLESAMPLE BERNOULLI(5 PERCENT)",
            "TABLESAMPLE and noise cannot be combined; leave one of them out",
        ),
        (
            "SELECT COUNT(*) FROM (SELECT age FROM stays UNION ALL SELECT age FROM stays)",
            "UNION ALL would count rows of stays twice; choose them by WHERE … OR … (line 1)",
        ),
    ],
)
def test_what_noise_cannot_hide_is_refused(sql: str, line: str) -> None:
    with pytest.raises(WinnowError) as refused:
        answer_of(sql, divided(ROWS, 3, seed=1), epsilon=1.0)
    assert str(refused.value) == line


def test_an_answer_has_a_table_errors_and_a_plan() -> None:
    answer = QueryAnswer(
        answer_of("SELECT outcome, COUNT(*) AS n FROM stays GROUP BY 1", divided(ROWS, 3, 1), epsilon=2.0)
    )
    assert answer.table.column_names == ["outcome", "n", "± n"]
    assert list(answer.to_pandas()["n"]) == [row["n"] for row in answer.rows]
    assert json.loads(json.dumps(answer.answer)) == answer.answer
    assert "ε = 2" in answer.explain()
    assert DECLARATION.columns["ward"].level == "public"


def test_minus_zero_and_zero_are_one_group_as_in_duckdb() -> None:
    """Their texts differ, and owners compare keys by them."""
    column = {"type": "number", "bounds": [-5, 5]}
    declared = TableDeclaration.model_validate({"columns": {"v": {"level": "public", **column}}})
    tables = [OwnerTable(declared, arrow.table({"v": [zero] * 6 + [1.5] * 12})) for zero in (0.0, -0.0)]
    told = answer_of("SELECT v, COUNT(*) AS n FROM stays GROUP BY v ORDER BY v", tables)
    assert told["rows"] == [{"v": 0.0, "n": 12}, {"v": 1.5, "n": 24}]
    assert told["left_out"] == 0
