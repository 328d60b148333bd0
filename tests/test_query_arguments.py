"""Analysts who write a row into one number: by steps that pick it out, or by digits that hold several columns."""

import pytest

from planted_tables import PLAIN_ROWS, PLAIN_TABLES, TABLES
from query_tables import answer_of, pooled_answer
from winnow.core import ConfigError

WITHIN = "SELECT {0} FROM (SELECT FLOOR(age / 110.0) AS step, age * 100000 + cost AS both, cost FROM stays) AS u"
CODE = "age * 100000 + CAST(FLOOR(cost) AS BIGINT)"


@pytest.mark.parametrize(
    "value",
    [
        "SUM(FLOOR(age / 110.0) * cost)",
        "SUM((age // 110) * cost)",
        "AVG(ROUND(age / 110.0 - 0.495) * cost)",
        "SUM(EXP(age - 110) * cost)",
        "SUM(EXP(age - 110 + cost / 10000))",
        "SUM(cost / (111 - age))",
        "SUM(age * age * age * cost)",
        "SUM((YEAR(day) - 2018) * (YEAR(day) - 2019) * cost)",
        "SUM(((age / 110.0 - 0.495 + 6755399441055744) - 6755399441055744) * cost)",
        "SUM((CAST(age / 110.0 - 0.495 + 12582912 AS FLOAT) - 12582912) * cost)",
        "SUM(CAST(age / 220.0 AS DECIMAL(9, 0)) * cost)",
        "SUM(age * 1e-200 * 1e-120 * 1e160 * 1e160 * cost)",
        "CORR((age / 110.0 - 0.495 + 6755399441055744) - 6755399441055744, cost)",
        "CORR(FLOOR(age / 110.0), cost)",
        "VAR_POP(FLOOR(age / 110.0) * 1000 + cost)",
        "SUM(CASE WHEN age > 50 THEN FLOOR(age / 110.0) * cost ELSE cost END)",
        f"MAX({CODE})",
        f"MEDIAN({CODE})",
        f"QUANTILE_DISC({CODE}, 0.25)",
        "MIN((age - 37) * (age - 37) * 100000 + cost)",
        "MIN((age - 37) * (age - 37))",
        "MIN(ABS(age - 37))",
        "MAX(cost % 1000)",
        "MAX(CASE WHEN age > 60 THEN cost + 100000 ELSE cost END)",
        "MIN(DISTANCE(age, cost, 37, 1000))",
    ],
)
def test_a_number_that_could_hold_a_row_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="could tell a single row; without noise it "):
        answer_of(f"SELECT {value} AS told FROM stays", TABLES)
    answer_of(f"SELECT {value} AS told FROM stays", TABLES, minimum=1)


@pytest.mark.parametrize("value", ["SUM(step * cost)", "MAX(both)", "CORR(step, cost)"])
def test_a_subquery_hides_no_such_number(value: str) -> None:
    with pytest.raises(ConfigError, match="could tell a single row"):
        answer_of(WITHIN.format(f"{value} AS told"), TABLES)


@pytest.mark.parametrize(
    "value",
    [
        "SUM(age * cost)",
        "SUM(cost * (1 - age / 200.0))",
        "AVG((cost - age) * (cost - age))",
        "VAR_POP(age + cost)",
        "CORR(age, cost)",
        "SUM(CAST(age AS DOUBLE) * cost)",
        "SUM((age + 1000000) * cost)",
        "SUM(FLOOR(age / 10.0) * 10)",
        "AVG(ABS(cost - 50 * age))",
        "SUM(CASE WHEN age > 50 THEN cost ELSE 0 END * 2)",
        "SUM((age > 50)::INTEGER * cost)",
        "MAX(CASE WHEN age > 50 THEN cost END)",
        "MIN(-2 * cost + 1)",
        "MEDIAN(FLOOR(cost / 10))",
        "MAX(YEAR(day))",
        "MIN(GREATEST(age, 10))",
    ],
)
def test_what_analysts_ask_for_is_told(value: str) -> None:
    sql = f"SELECT {value} AS told FROM stays"
    (row,) = answer_of(sql, PLAIN_TABLES)["rows"]
    assert row["told"] == pytest.approx(pooled_answer(sql, PLAIN_ROWS)[0][0], rel=1e-6)
