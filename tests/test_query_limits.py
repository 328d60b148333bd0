"""What statements, and owners who lie, can make others compute: the limits, and that limits tell nothing of a row."""

from typing import Any

import pyarrow as arrow
import pytest

from join_tables import join_answer, pooled_tables
from place_tables import answer_about_places, place_rows
from winnow.analytics.permissions import PERMISSIONS
from winnow.analytics.program import run_plain
from winnow.analytics.question import QueryTerms, merge_terms, read_question
from winnow.analytics.sql import duckdb_engine, statement_limits
from winnow.analytics.sql.told_tables import ToldTable, _told_rows
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import ConfigError, DataError, WinnowError

ORDERS = pooled_tables(300, seed=1, missing=0)


def told(sql: str) -> Any:
    """The answer, or what it is refused by."""
    try:
        return join_answer(sql, ORDERS, 2)["rows"]
    except WinnowError as error:
        return str(error)


def crossed(tables: int, rest: str = "") -> str:
    joins = " ".join(f"CROSS JOIN nations n{place}" for place in range(tables))
    return f"SELECT COUNT(*) AS n FROM orders o {joins}{rest}"


def test_a_join_that_explodes_is_refused_before_it_is_computed() -> None:
    assert told(crossed(2)) == [{"n": 300 * 36}]
    assert "joins one row with too many others, by nations" in told(crossed(20))
    pairs = "(SELECT a.nation FROM nations a CROSS JOIN nations b CROSS JOIN nations c)"
    nested = " ".join(f"CROSS JOIN {pairs} p{place}" for place in range(4))
    assert "too many others" in told(f"SELECT COUNT(*) AS n FROM orders o {nested}")


def test_equal_columns_do_not_hide_that_a_join_explodes() -> None:
    again = " ".join(f"JOIN nations n{place} ON n{place}.region = n{place - 1}.region" for place in range(1, 20))
    assert "too many others" in told(f"SELECT COUNT(*) AS n FROM orders o CROSS JOIN nations n0 {again}")


def test_conditions_do_not_decide_whether_one_unit_has_too_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error for one limit and an answer for the next one would tell a person's value."""
    monkeypatch.setattr(statement_limits, "MAX_ROWS", 2_000)
    for limit in (0, 259, 260, 10**6):  # from all orders to none
        assert "too many others" in told(crossed(3, f" WHERE total > {limit}"))
    assert "the statement has more than 2,000 rows here" in told(crossed(2))
    assert told(crossed(2, " WHERE total > 1000000")) == [{"n": 0}]


def test_the_rows_of_one_table_are_never_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statement_limits, "MAX_ROWS", 10)
    assert told("SELECT COUNT(*) AS n FROM orders") == [{"n": 300}]


def test_a_statement_that_takes_too_long_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_engine, "MAX_SECONDS", 0.2)
    with pytest.raises(DataError, match="took longer than"), duckdb_engine.connection() as opened:
        opened.sql("SELECT SUM(a.range * b.range) FROM range(1000000) a, range(1000000) b").fetchall()


def test_memory_that_is_not_enough_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_left(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("winnow.analytics.sql.execute_at_owner.limited_rows", nothing_left)
    assert "memory here is not enough" in told(crossed(1))


# Owners who lie ------------------------------------------------------------------------------------------------------

STATIONS = ToldTable(
    name="stations",
    owners=("north", "south"),
    declaration=TableDeclaration.model_validate(
        {"columns": {"name": {"level": "public", "type": "text"}}, "replicated": True}
    ),
)


def test_a_told_row_counts_no_more_often_than_owners_have_it() -> None:
    assert _told_rows(STATIONS, [(("a", "0"), 2), (("a", "1"), 1)]).rows.num_rows == 3
    with pytest.raises(DataError, match="more often than there are owners"):
        _told_rows(STATIONS, [(("a", "0"), 10**15)] * 12)  # as a list it would fill the memory
    with pytest.raises(DataError, match="more than 5,000 rows"):
        _told_rows(STATIONS, [((str(each), "0"), 2) for each in range(2501)])


# Owners who take part without a row ----------------------------------------------------------------------------------


def test_an_owner_of_told_rows_is_no_second_owner_of_a_sum() -> None:
    sql = "SELECT COUNT(*) AS n, SUM(p.cost) AS c FROM people p JOIN stations s ON s.name = 'station 1'"
    pooled = place_rows(300, 7, seed=1)
    alone = tuple(each for each in PERMISSIONS if each != "per-owner")
    with pytest.raises(ConfigError, match="an owner answers where 2 owners take part at least; those with rows"):
        answer_about_places(sql, pooled, owners=1, minimum=10, allow=alone)
    assert answer_about_places(sql, pooled, owners=2, minimum=10, allow=alone)["rows"][0]["n"] == 300
    assert answer_about_places(sql, pooled, owners=1, minimum=10)["rows"][0]["n"] == 300


# Texts and names -----------------------------------------------------------------------------------------------------


def test_texts_do_not_grow_with_every_subquery() -> None:
    rows = "orders"
    for _ in range(18):
        rows = f"(SELECT note || note AS note FROM {rows}) AS n"
    assert "|| and CONCAT could make one text of more than 1,000" in told(f"SELECT COUNT(note) AS n FROM {rows}")
    parts = ", ".join(f"t{place} AS (SELECT CONCAT(note, note) AS note FROM t{place - 1})" for place in range(1, 12))
    chain = f"WITH t0 AS (SELECT note FROM orders), {parts} SELECT COUNT(note) AS n FROM t11"
    assert "|| and CONCAT could make" in told(chain)
    assert told("SELECT COUNT(*) AS n FROM orders WHERE note || '!' || note <> 'x'") == [{"n": 300}]


def test_a_pattern_has_few_wildcards() -> None:
    assert "more than 10 times %" in told(f"SELECT COUNT(*) AS n FROM orders WHERE note LIKE '{'%_' * 11}'")
    assert told("SELECT COUNT(*) AS n FROM orders WHERE note LIKE '%'") == [{"n": 300}]


def test_a_column_with_a_capital_beyond_a_to_z_can_be_asked() -> None:
    declared = TableDeclaration.model_validate(
        {"columns": {"Änderung": {"level": "protected", "type": "integer", "bounds": [0, 9]}, "Ort": "public"}}
    )
    rows = arrow.table({"Änderung": [1, 2, 3], "Ort": ["a", "b", "b"]})
    question = read_question({"kind": "query", "sql": 'SELECT SUM("änderung") AS s, COUNT(ort) AS n FROM moves'})
    terms = {"north": QueryTerms(declaration=declared, minimum=1, owners=1, allow=PERMISSIONS)}
    answer = run_plain(lambda: question.program(merge_terms(question, terms)), [OwnerTable(declared, rows)])
    assert answer["rows"] == [{"s": 6, "n": 3}]
