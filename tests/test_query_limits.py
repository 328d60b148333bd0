"""What statements, and owners who lie, can make others compute: the limits, and that limits tell nothing of a row."""

from typing import Any

import pytest

from join_tables import join_answer, pooled_tables
from winnow.analytics.sql import duckdb_engine, statement_limits
from winnow.analytics.sql.told_tables import ToldTable, _told_rows
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.core import DataError, WinnowError

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

    monkeypatch.setattr("winnow.analytics.sql.owner_rows.limited_rows", nothing_left)
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
