"""The end of a statement, over what was opened alone: expressions of aggregates, HAVING, ORDER BY and LIMIT."""

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from typing import Any

import duckdb
import pyarrow as arrow

from winnow.analytics.sql.aggregate_values import Estimates
from winnow.analytics.sql.duckdb_engine import connection, described_types
from winnow.analytics.sql.owner_rows import Group
from winnow.analytics.sql.query_plan import QueryPlan
from winnow.analytics.sql.sql_text import error_name
from winnow.core import DataError


def finish_query(
    plan: QueryPlan, groups: Sequence[Group], shown: Sequence[int], estimates: Estimates
) -> dict[str, list[Any]]:
    """The answer's rows as values by column, and their standard errors where there are any."""
    columns: dict[str, arrow.Array] = {
        key.name: arrow.array([groups[group][place] for group in shown], arrow.string())
        for place, key in enumerate(plan.keys)
    }
    for each in plan.aggregates:
        found = [estimates[each.name, group] for group in shown]
        columns[each.name] = _numbers([one.value for one in found])
        columns[error_name(each.name)] = arrow.array([one.error for one in found], arrow.float64())
    if not columns:
        columns["nothing"] = arrow.array([0] * len(shown))
    try:
        with connection() as opened:
            opened.register("released", arrow.table(columns))
            rows = opened.execute(plan.finish_sql).fetchall()
    except duckdb.Error as error:
        raise DataError(
            f"the end of the statement cannot be computed ({type(error).__name__}); check its expressions"
        ) from None
    return {
        "rows": [dict(zip(plan.columns, map(plain_value, row), strict=False)) for row in rows],
        "errors": [_errors(plan, row[len(plan.columns) :]) for row in rows],
    }


def check_finish(plan: QueryPlan) -> None:
    """ConfigError if types do not fit: that would come out only after all has been opened and paid for."""
    columns = {key.name: arrow.array([], arrow.string()) for key in plan.keys}
    for each in plan.aggregates:
        columns |= dict.fromkeys((each.name, error_name(each.name)), arrow.array([], arrow.float64()))
    with connection() as opened:
        opened.register("released", arrow.table(columns or {"nothing": arrow.array([], arrow.int64())}))
        described_types(opened, plan.finish_sql)


def _errors(plan: QueryPlan, found: Sequence[float | None]) -> dict[str, float]:
    names = [name for name, each in zip(plan.columns, plan.error_columns, strict=True) if each is not None]
    return {name: error for name, error in zip(names, found, strict=True) if error is not None}


def _numbers(values: Sequence[int | float | None]) -> arrow.Array:
    whole = all(each is None or isinstance(each, int) for each in values)
    return arrow.array(values, arrow.int64() if whole else arrow.float64())


def plain_value(value: Any) -> Any:
    """As JSON can hold it."""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):  # of HISTOGRAM
        return {str(key): plain_value(each) for key, each in value.items()}
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
