"""Joins within an owner: what owners answer is what DuckDB says of all their rows, and small groups never appear."""

from typing import Any

import numpy as np
import pyarrow as arrow
import pytest

from join_tables import (
    DECLARATIONS,
    divided_tables,
    join_answer,
    join_terms,
    merged_terms,
    pooled_join,
    pooled_tables,
    random_join,
)
from statistics_tables import recorded
from test_query import agree, by_key, plain
from winnow.analytics.program import run_plain
from winnow.analytics.question import QueryTerms, merge_terms, read_question
from winnow.analytics.simulate import ask_owners
from winnow.analytics.sql.plan_query import make_query_plan
from winnow.core import ConfigError

POOLED = pooled_tables(300, seed=1)


def check_against_duckdb(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sql = random_join(rng)
    answer = join_answer(sql, POOLED, int(rng.integers(2, 6)), minimum=1, seed=seed)
    expected = [tuple(map(plain, row)) for row in pooled_join(sql, POOLED)]
    told = [tuple(row.values()) for row in answer["rows"]]
    keys = sum(name.startswith("key") for name in answer["columns"])
    assert len(told) == len(expected), sql
    searched = "MIN(" in sql or "MAX(" in sql
    for own, other in zip(by_key(told, keys), by_key(expected, keys), strict=True):
        for name, one, two in zip(answer["columns"], own, other, strict=True):
            assert agree(one, two, name, searched), (sql, name, one, two)


@pytest.mark.parametrize("seed", range(24))
def test_random_joins_are_answered_as_by_duckdb_on_all_rows(seed: int) -> None:
    check_against_duckdb(seed)


@pytest.mark.slow(part="science")
def test_three_hundred_random_joins_are_answered_as_by_duckdb() -> None:
    for seed in range(100, 400):
        check_against_duckdb(seed)


def test_owners_who_compute_in_shares_give_the_same_answer() -> None:
    sql = (
        "SELECT b.nation, COUNT(*) AS n, SUM(quantity) AS q FROM orders o JOIN items i USING (okey) "
        "JOIN buyers b ON o.buyer = b.buyer WHERE late GROUP BY 1 ORDER BY 1"
    )
    question = read_question({"kind": "query", "sql": sql})
    terms = join_terms(question.tables, 3)
    tables = divided_tables(POOLED, question.tables, 3, seed=2)
    answer = ask_owners(question, dict(zip(terms, tables, strict=True)), terms)
    assert answer == join_answer(sql, POOLED, 3, seed=2)
    assert [tuple(row.values()) for row in answer["rows"]] == pooled_join(sql, POOLED)[:-1]  # 7 rows have no nation


# Small groups --------------------------------------------------------------------------------------------------------


def planted(orders: int, items: int) -> dict[str, arrow.Table]:
    """A priority with so few orders, each with so many items; and 100 orders with two items each."""
    okeys = [*range(100), *range(100, 100 + orders)]
    item_keys = [key for key in range(100) for _ in range(2)] + [key for key in okeys[100:] for _ in range(items)]
    tables = pooled_tables(100 + orders, seed=3, missing=0.0)
    rows, count = tables["orders"], len(item_keys)
    rows = rows.set_column(2, "priority", arrow.array(["low"] * 100 + ["secret"] * orders))
    drawn = tables["items"].take(np.arange(count) % len(tables["items"]))
    return {**tables, "orders": rows, "items": drawn.set_column(0, "okey", arrow.array(item_keys, arrow.int64()))}


@pytest.mark.parametrize(("orders", "shown"), [(1, False), (9, False), (10, True)])
def test_many_rows_of_few_orders_are_a_small_group(orders: int, shown: bool) -> None:
    """The minimum counts orders: one of them with 300 items is still one."""
    sql = "SELECT priority, COUNT(*) AS n, SUM(quantity) AS q FROM orders JOIN items USING (okey) GROUP BY 1 ORDER BY 1"
    pooled = planted(orders, items=300)
    answer = join_answer(sql, pooled, 3)
    expected = pooled_join(sql, pooled)
    assert [tuple(row.values()) for row in answer["rows"]] == (expected if shown else expected[:1])
    assert answer["left_out"] == (0 if shown else 1)
    assert "different okey >= 10" in "\n".join(answer["plan"])


@pytest.mark.parametrize(
    "number",
    [
        "COUNT(*) FILTER (WHERE priority = 'secret')",
        "SUM(CASE WHEN priority = 'secret' THEN quantity ELSE 0 END)",
        "COUNT(CASE WHEN priority <> 'secret' THEN 1 END)",
    ],
)
def test_a_condition_that_chooses_few_orders_hides_the_number(number: str) -> None:
    sql = f"SELECT COUNT(*) AS n, {number} AS told FROM orders JOIN items USING (okey)"
    answer = join_answer(sql, planted(9, items=300), 3)
    assert answer["rows"] == [{"n": 200 + 2700, "told": None}]
    assert join_answer(sql, planted(10, items=3), 3)["hidden_values"] == 0


def test_left_join_on_a_condition_of_few_hides_what_it_counts() -> None:
    sql = (
        "SELECT COUNT(*) AS n, COUNT(i.okey IS NOT NULL) AS told FROM orders o "
        "LEFT JOIN items i ON i.okey = o.okey AND o.priority = 'secret'"
    ).replace("i.okey IS NOT NULL", "i.part")
    answer = join_answer(sql, planted(4, items=30), 3)
    assert answer["rows"] == [{"n": 100 + 120, "told": None}]


def test_a_replicated_table_that_repeats_a_row_does_not_make_it_more() -> None:
    sql = "SELECT COUNT(*) AS n FROM orders o CROSS JOIN nations WHERE o.priority = 'secret'"
    pooled = planted(2, items=1)
    assert pooled_join(sql, pooled) == [(12,)]
    assert join_answer(sql, pooled, 3)["rows"] == []
    assert join_answer(sql, pooled, 3, minimum=2)["rows"] == [{"n": 12}]


def opened_by(sql: str, pooled: dict[str, arrow.Table], seed: int, owners: int = 3) -> list[tuple[str, Any]]:
    question, opened = read_question({"kind": "query", "sql": sql}), list[tuple[str, Any]]()
    terms = merged_terms(sql, owners)
    tables = divided_tables(pooled, question.tables, owners, seed)
    run_plain(lambda: recorded(question.program(terms), opened), tables)
    return opened


def test_what_is_opened_has_the_same_form_however_rows_are_divided() -> None:
    sql = (
        "SELECT b.nation, mode, COUNT(*) AS n, MAX(total) AS m, COUNT(*) FILTER (WHERE late) AS l FROM orders o "
        "JOIN items i USING (okey) JOIN buyers b ON o.buyer = b.buyer GROUP BY 1, 2"
    )
    forms = [
        [(label, len(values)) for label, values in opened_by(sql, POOLED, seed) if "public" not in label]
        for seed in (1, 2, 3)
    ]
    assert forms[0] == forms[1] == forms[2]


def test_public_values_are_those_of_whole_tables() -> None:
    """Whatever a condition chooses, and whatever rows meet in the join."""
    sql = "SELECT priority, COUNT(*) AS n FROM orders o JOIN items i USING (okey) WHERE o.okey = {} GROUP BY 1"
    opened = [
        [values.tolist() for label, values in opened_by(sql.format(key), POOLED, 1) if "public" in label]
        for key in (4, 10**6)
    ]
    assert opened[0] == opened[1]
    assert opened[0]


# Refusals ------------------------------------------------------------------------------------------------------------

TOGETHER = "are joined within each owner: declare together = … for a column of each, and join on those"
REFUSALS = {
    "SELECT COUNT(*) FROM orders, items": f"orders and items {TOGETHER} (line 1)",
    "SELECT COUNT(*) FROM orders o\nJOIN items i ON o.total = i.part": f"o and i {TOGETHER} (line 2)",
    "SELECT COUNT(*) FROM orders o JOIN items i ON o.okey = i.okey OR true": f"o and i {TOGETHER} (line 1)",
    "SELECT COUNT(*) FROM orders WHERE EXISTS (SELECT 1 FROM items)": f"orders and items {TOGETHER} (line 1)",
    "SELECT COUNT(*) FROM orders WHERE total IN (SELECT part FROM items)": "what is selected must lie together",
    "SELECT COUNT(*) FROM orders WHERE okey NOT IN (SELECT okey FROM items)": "write NOT EXISTS (SELECT …) (line 1)",
    "SELECT COUNT(*) FROM nations": "all owners have the same rows of what is in FROM; name a table whose rows",
    "SELECT COUNT(*) FROM nations n LEFT JOIN orders o ON o.note = n.nation": "LEFT JOIN of o needs ON with a column",
    "SELECT COUNT(*) FROM nations n WHERE EXISTS (SELECT 1 FROM orders o WHERE o.note = n.nation)": "it begins with a",
    "SELECT COUNT(*) FROM buyers b JOIN orders o ON o.okey = b.nation": "compares integer with text; convert",
    "SELECT COUNT(*) FROM orders JOIN items USING (total)": "USING (total): both sides of the join need such a column",
    "SELECT SUM(okey) FROM orders JOIN items USING (okey)": "column 'okey' is private and cannot stand in SUM; it may",
    "SELECT okey, COUNT(*) FROM orders JOIN items USING (okey) GROUP BY 1": "'okey' is private and cannot be shown",
    "SELECT COUNT(*) FROM orders o JOIN items i ON o.okey = okey": "column 'okey' may be o.okey or i.okey; write one",
    "SELECT MEDIAN(total) FROM orders JOIN items USING (okey)": "MEDIAN of a join is not supported: one row may be",
    "SELECT COUNT(*) FILTER (WHERE EXISTS (SELECT 1 FROM items)) FROM orders": "are supported in WHERE alone (line 1)",
    "SELECT COUNT(*) FROM (SELECT nation FROM nations UNION ALL SELECT note FROM orders) x": "once for each owner",
    "SELECT priority || mode, COUNT(*) FROM orders JOIN items USING (okey) GROUP BY 1": "is protected and has no list",
    "SELECT b.nation, COUNT(*) FROM orders o LEFT JOIN buyers b ON b.buyer = o.buyer GROUP BY 1": "LEFT JOIN may leave",
    "SELECT COUNT(*) FROM orders o, (SELECT i.part FROM items i JOIN orders p USING (okey)) x WHERE total = part": (
        f"o and x {TOGETHER}"
    ),
    "SELECT COUNT(*) FROM orders JOIN items TABLESAMPLE BERNOULLI(10 PERCENT) USING (okey)": "one table, once",
}


@pytest.mark.parametrize("sql", REFUSALS)
def test_what_cannot_be_joined_is_refused_by_name_and_line(sql: str) -> None:
    question = read_question({"kind": "query", "sql": sql})
    with pytest.raises(ConfigError) as refused:
        next(question.program(merged_terms(sql, 3)))
    assert REFUSALS[sql] in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*) FROM orders o JOIN items i ON DWITHIN(o.buyer, o.total, i.part, i.price, 3)",
        "SELECT COUNT(*) FROM orders o, items i WHERE DISTANCE(o.buyer, o.total, i.part, i.price) < 3",
    ],
)
def test_a_distance_between_rows_that_several_owners_have_is_refused_by_name(sql: str) -> None:
    with pytest.raises(ConfigError, match=r"^a distance between rows of two owners takes a table .* \(line 1\)$"):
        make_query_plan(sql, {name: DECLARATIONS[name] for name in ("orders", "items")})


def test_noise_in_a_join_is_refused() -> None:
    sql = "SELECT COUNT(*) FROM orders JOIN items USING (okey)"
    question = read_question({"kind": "query", "sql": sql, "epsilon": 1.0})
    with pytest.raises(ConfigError, match="with noise a statement names one table, once"):
        next(question.program(merged_terms(sql, 3)))


def test_owners_with_different_rows_of_a_replicated_table_are_named() -> None:
    question = read_question(
        {"kind": "query", "sql": "SELECT COUNT(*) FROM orders o JOIN nations n ON n.nation = o.note"}
    )
    terms = join_terms(question.tables, 3, replicated={"nations": "1f"})
    terms["owner 2"] = terms["owner 2"].model_copy(update={"replicated": {"nations": "2e"}})
    with pytest.raises(ConfigError, match="owner 0 and owner 2 have different rows of the replicated table 'nations'"):
        merge_terms(question, terms)


def test_the_strictest_rule_of_all_tables_counts() -> None:
    question = read_question({"kind": "query", "sql": "SELECT COUNT(*) FROM orders JOIN items USING (okey)"})
    terms = {
        **join_terms(question.tables, 2),
        "strict": QueryTerms(
            declaration=DECLARATIONS["orders"], beside={"items": DECLARATIONS["items"]}, allow=("fit",), minimum=30
        ),
    }
    with pytest.raises(ConfigError, match="strict forbids aggregate"):
        merge_terms(question, terms)
    lacking = {
        **join_terms(question.tables, 2),
        "poor": QueryTerms(declaration=DECLARATIONS["orders"], allow=("aggregate",)),
    }
    assert merge_terms(question, lacking).holders["items"] == ("owner 0", "owner 1")
