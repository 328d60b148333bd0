"""Refuses numbers that could be made of one row's values (`argument_terms.py`)."""

from winnow.analytics.sql.query_plan import SEARCHES, QueryPlan
from winnow.core import ConfigError

ONE_COLUMN = "without noise it takes one column, as it is or with numbers added and multiplied"
PRODUCTS = (
    "without noise it may multiply different columns as they are, but no column twice, nor FLOOR, %, EXP and the like; "
    "and it may not divide one column by another"
)


def check_arguments(plan: QueryPlan, minimum: int) -> None:
    for each in plan.aggregates:
        if each.telling and minimum > 1:
            rule = ONE_COLUMN if each.function in SEARCHES else PRODUCTS
            raise ConfigError(f"{each.telling} could tell a single row; {rule}")
