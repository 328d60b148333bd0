"""Statements that told one person's value by a trick that is refused, written in other words."""

from typing import Any

import numpy as np
import pyarrow as arrow
import pytest

from planted_tables import (
    PLAIN_ROWS,
    PLAIN_TABLES,
    TABLES,
    answer_of_two,
    answer_or_refusal,
    hides_the_person,
    within_owners,
)
from query_tables import answer_of, nearest_statement, pooled_answer
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import ConfigError


@pytest.mark.parametrize(
    "value",
    [
        "SUM(DISTANCE(FLOOR(age / 110.0) * cost, 0, 0, 0) + 1)",
        "AVG(KM(0, FLOOR(age / 110.0) * cost / 1000, 0, 0) + 1)",
        "SUM(DISTANCE(age * 10000000, cost, 1100000000, 0))",
        "SUM(POW(cost, age // 110) % 1000000)",
        "SUM(age * SIN(POW(2, cost // 1000)))",
        "SUM(DATEDIFF('day', DATE '2000-01-01', DATE '2000-01-01' + CAST(FLOOR(age / 110.0) * cost AS INTEGER) "
        "* INTERVAL 1 DAY) % 1000000 + 1)",
    ],
)
def test_no_function_of_several_columns_passes_for_one_quantity(value: str) -> None:
    with pytest.raises(ConfigError, match="could tell a single row"):
        answer_of(f"SELECT {value} AS s FROM stays WHERE cost IS NOT NULL", TABLES)


def test_a_subquery_makes_no_place_of_several_columns() -> None:
    made = "(SELECT FLOOR(age / 110.0) * cost AS f, age * 10000000 AS far, cost FROM stays WHERE cost IS NOT NULL) AS u"
    for place in ("f, 0, 0, 0", "far, cost, 1100000000, 0"):
        with pytest.raises(ConfigError, match="could tell a single row"):
            answer_of(f"SELECT SUM(DISTANCE({place}) + 1) AS s FROM {made}", TABLES)
    first = "(SELECT * FROM stays WHERE cost IS NOT NULL ORDER BY DISTANCE(cost * (1 - age // 110), 0, 0, 0) LIMIT 17)"
    with pytest.raises(ConfigError, match="ORDER BY beside LIMIT takes columns and distances"):
        answer_of(f"SELECT MAX(cost) AS m FROM {first} AS first", TABLES)


@pytest.mark.parametrize("value", ["AVG(DISTANCE(x, y, 1, -2))", "SUM(KM(x, y, 1 + 1, 2))", "AVG(POW(x, 2))"])
def test_distances_of_places_are_told(value: str) -> None:
    sql = f"SELECT {value} AS told FROM stays"
    (row,) = answer_of(sql, PLAIN_TABLES)["rows"]
    assert row["told"] == pytest.approx(pooled_answer(nearest_statement(sql), PLAIN_ROWS)[0][0], rel=1e-6)


CHEAP = "CONTAINS('.0.1.2.3.4.5.6.7.8.9.', '.' || CAST(CAST(FLOOR(cost / 100) AS BIGINT) AS TEXT) || '.')"
"""Whether a cost is below 1000, without a comparison."""


@pytest.mark.parametrize(
    "rows",
    [
        f"stays WHERE STARTS_WITH(CAST(age AS TEXT), '110') OR {CHEAP}",
        f"stays WHERE age IS NOT DISTINCT FROM 110 OR {CHEAP}",
        f"stays WHERE well OR {CHEAP}",
        "stays WHERE CAST(age // 110 AS BOOLEAN) OR CAST(1 - SIGN(FLOOR(cost / 1000)) AS BOOLEAN)",
        "stays WHERE age // 110 OR 1 - SIGN(FLOOR(cost / 1000))",
        "stays WHERE GREATEST(age, 1) = 110 OR LEAST(cost, 99999) < 1000",
        "stays WHERE DISTANCE(cost * (1 - (age // 110)), 0, 0, 0) < 1000",
        "stays WHERE DWITHIN(cost * (1 - (age // 110)), 0, 0, 0, 1000)",
        "stays WHERE 1 - SIGN(FLOOR(cost * (1 - (age // 110)) / 1000))",
        "stays WHERE 0 IN (age - 110, FLOOR(cost / 1000))",
        "(SELECT cost, cost < 1000 + 50000 * (age // 110) AS f FROM stays) u WHERE f",
        "(SELECT cost, 1000 + 50000 * (age // 110) AS most FROM stays) u WHERE cost < most",
    ],
)
def test_a_condition_in_other_words_does_not_add_one_person_to_many(rows: str) -> None:
    assert hides_the_person("MAX(cost)", rows)


@pytest.mark.parametrize(
    "value",
    [
        "MAX(cost) FILTER (WHERE age = 110 OR cost < 1000)",
        "MAX(cost) FILTER (WHERE cost < 1000 + 50000 * (age // 110))",
        "MAX(CASE WHEN age = 110 OR cost < 1000 THEN cost END)",
        "MAX(CASE WHEN age <> 110 AND cost >= 1000 THEN NULL ELSE cost END)",
        "MAX(CASE WHEN age <> 110 AND cost >= 1000 THEN NULL WHEN TRUE THEN cost END)",
        "MAX(CASE WHEN cost < 1000 + 50000 * (age // 110) THEN cost END)",
        "MAX(t)",
        "SUM(age) FILTER (WHERE age = 40 OR well)",
        "SUM(CASE WHEN age <> 40 AND NOT well THEN 0 ELSE age END)",
    ],
)
def test_nor_does_one_of_an_aggregate(value: str) -> None:
    """All others who are chosen cost less than 1000, or are 40 years old."""
    made = "CASE WHEN age = 110 OR cost < 1000 THEN cost END AS t"
    assert hides_the_person(value, f"(SELECT *, {made} FROM stays WHERE cost IS NOT NULL) AS u")


def test_conditions_of_an_aggregate_that_all_hold_divide_nothing() -> None:
    """Of those above 95 who moved there may be few, and of those who died."""
    sql = "SELECT COUNT(*) FILTER (WHERE age < 90 AND outcome <> 'died') AS n FROM stays"
    assert answer_of(sql, PLAIN_TABLES)["rows"] == [{"n": pooled_answer(sql, PLAIN_ROWS)[0][0]}]


def test_columns_of_two_tables_with_one_name_are_two() -> None:
    """FLOOR(o.total / 260) * i.total passed for a function of one column."""
    from winnow.analytics.sql.plan_query import make_query_plan

    own: dict[str, Any] = {"okey": {"level": "private", "type": "integer", "together": "order"}}
    own["x"] = {"level": "protected", "type": "integer", "bounds": [0, 100]}
    tables = dict.fromkeys(("orders", "items"), TableDeclaration.model_validate({"columns": own}))
    joined = "orders o JOIN items i ON o.okey = i.okey"
    (told,) = make_query_plan(f"SELECT SUM(o.x * i.x) AS s FROM {joined}", tables).aggregates
    assert not told.telling
    for value in ("FLOOR(o.x / 100.0) * i.x", "o.x * i.x % 7", "SIN(o.x + i.x)"):
        (told,) = make_query_plan(f"SELECT SUM({value}) AS s FROM {joined}", tables).aggregates
        assert told.telling


@pytest.mark.parametrize(
    "rows",
    [
        "(SELECT age - {0} AS a, CAST(0 AS DECIMAL(38, 36)) AS b, patient FROM stays) u WHERE patient = 'p7' AND a = b",
        "(SELECT age - {0} AS a, 0.000000000000000000000000000000000001 AS b, patient FROM stays) u "
        "WHERE patient = 'p7' AND a = b",
        "(SELECT CAST(day AS DATE) + CAST((age - {0}) * 10000000 AS INTEGER) AS a, day AS b, patient FROM stays) u "
        "WHERE patient = 'p7' AND a = b",
        "(SELECT age - {0} AS t FROM stays WHERE patient = 'p7' UNION ALL "
        "SELECT CAST(0 AS DECIMAL(38, 36)) AS t FROM visits) u",
        "(SELECT age - {0} AS t FROM stays WHERE patient = 'p7' UNION ALL SELECT t FROM "
        "(SELECT COALESCE(well, 0.000000000000000000000000000000000001) AS t FROM visits) v) u",
        "(SELECT CAST(day AS DATE) + CAST((age - {0}) * 10000000 AS INTEGER) AS t FROM stays WHERE patient = 'p7' "
        "UNION ALL SELECT day AS t FROM visits) u",
    ],
)
def test_no_conversion_fails_on_one_row(rows: str) -> None:
    """It failed if p7 was 110 years old, and was answered if not: 100 is no DECIMAL(38, 36), 0 is one."""
    assert told_of_two(rows.format(0)) == told_of_two(rows.format(110))


def told_of_two(rows: str) -> Any:
    try:
        answer = answer_of_two(f"SELECT COUNT(*) AS n FROM {rows}")
    except ConfigError as error:  # before any row is read
        return str(error).split(":")[0]
    return answer["rows"], answer["left_out"]


def test_days_of_an_interval_are_not_those_of_a_month() -> None:
    """The sum was 31 for each row."""
    with pytest.raises(ConfigError, match="its bounds are not known"):
        answer_of("SELECT SUM(EXTRACT(DAY FROM day - DATE '2000-01-01')) AS s FROM stays", TABLES)


def test_conditions_do_not_multiply_from_subquery_to_subquery() -> None:
    """Eight subqueries took days to plan; three of them 45 s."""
    rows = "WITH c0 AS (SELECT CASE WHEN age > 5 THEN 1 ELSE 0 END AS a FROM stays)"
    rows += "".join(f", c{place + 1} AS (SELECT {'+'.join('a' * 6)} AS a FROM c{place})" for place in range(8))
    assert answer_or_refusal(f"{rows} SELECT SUM(a) AS s FROM c8")[0]["s"] % 6**8 == 0


def test_statements_with_too_many_conditions_are_one_line() -> None:
    """The first was a traceback after minutes."""
    greatest = ",".join(f"GREATEST(age, {place})" for place in range(60))
    compared = "+".join(f"(age > {place})::INTEGER" for place in range(400))
    for sql in (
        f"SELECT SUM(GREATEST({greatest})) FROM stays",
        f"SELECT SUM(t) FROM (SELECT {compared} AS t FROM stays) u",
    ):
        with pytest.raises(ConfigError, match="chooses rows by more than 300 conditions"):
            answer_of(sql, TABLES)


PAY = np.array([*range(1000, 1030), *[0] * 120, 77_777, *[0] * 49])
"""Thirty of the north are paid, and one of the south."""
PAID = TableDeclaration.model_validate(
    {
        "columns": {
            "pay": {"level": "protected", "type": "integer", "bounds": [0, 100_000]},
            "bonus": {"level": "protected", "type": "integer", "bounds": [0, 100_000]},
            "side": {"level": "protected", "values": ["north", "south"]},
            "is_paid": {"level": "protected", "type": "integer", "bounds": [0, 1]},
            "who": {"level": "private", "type": "integer"},
        }
    }
)
EVERYBODY = "WHERE who <> 999"
"""A private column stands there, so it is not told which sets are empty."""


def paid(pay: np.ndarray) -> list[OwnerTable]:
    columns = {"pay": pay, "bonus": arrow.array(pay, mask=pay == 0), "side": ["north"] * 100 + ["south"] * 100}
    rows = arrow.table({**columns, "is_paid": (pay > 0).astype(int), "who": np.arange(200)})
    return [OwnerTable(PAID, rows.slice(first, 50)) for first in range(0, 200, 50)]


@pytest.mark.parametrize(
    "north", ["SUM({0}) FILTER (WHERE side = 'north')", "SUM(CASE side WHEN 'north' THEN {0} END)"]
)
@pytest.mark.parametrize("number", ["pay", "bonus", "pay * 2 + bonus"])
@pytest.mark.parametrize("where", ["", EVERYBODY])
def test_the_one_person_elsewhere_who_has_a_number_is_not_what_two_sums_differ_by(
    number: str, north: str, where: str
) -> None:
    tables = paid(PAY)
    some = north.format(number)
    (row,) = answer_of(f"SELECT {some} AS n, SUM({number}) AS s FROM stays {where}", tables)["rows"]
    assert None in row.values()
    (row,) = answer_of(
        f"SELECT COUNT(bonus) FILTER (WHERE side = 'north') AS n, COUNT(bonus) AS s FROM stays {where}", tables
    )["rows"]
    assert row == {"n": 30, "s": None}
    assert answer_of(f"SELECT SUM(pay) AS s FROM stays {where}", tables)["rows"] == [{"s": int(PAY.sum())}]


@pytest.mark.parametrize("where", ["", EVERYBODY])
def test_sums_with_conditions_are_told_where_enough_rows_have_a_number_on_either_side(where: str) -> None:
    pay = np.tile([*range(1000, 1030), *[0] * 70], 2)
    some = "SUM(pay) FILTER (WHERE side = 'north') AS n, SUM(pay) AS s, COUNT(bonus) AS c"
    (row,) = answer_of(f"SELECT {some} FROM stays {where}", paid(pay))["rows"]
    assert row == {"n": int(pay.sum()) // 2, "s": int(pay.sum()), "c": 60}
    (row,) = answer_of(f"SELECT SUM(is_paid) AS n, AVG(is_paid) AS a FROM stays {where}", paid(pay))["rows"]
    assert row == {"n": 60, "a": pytest.approx(0.3)}


@pytest.mark.parametrize(
    "condition",
    [
        "total < 100 OR EXISTS ({0} AND i.price > 99)",
        "NOT (total >= 100 AND NOT EXISTS ({0} AND i.price > 99))",
        "EXISTS ({0} AND (o.total < 100 OR i.price > 99))",
        "EXISTS ({0} AND NOT (o.total >= 100 AND i.price <= 99))",
    ],
)
def test_a_subquery_does_not_add_one_order_to_many(condition: str) -> None:
    """MAX(total) was that order's; all others were below 100."""
    rows = "SELECT * FROM items i WHERE i.okey = o.okey"
    told = within_owners(f"SELECT MAX(total) AS m FROM orders o WHERE {condition.format(rows)}")
    assert "could add one row to many" in told
    for alone in (f"EXISTS ({rows} AND i.price > 50)", f"NOT EXISTS ({rows} AND (i.price > 50 OR i.late))"):
        assert within_owners(f"SELECT COUNT(*) AS n FROM orders o WHERE total > 100 AND {alone}")[0]
