"""A first look at a table, in a handful of comparisons: what need not be counted, and how large counts can be.

Most columns have no missing and no unlisted values, and most groupings no rows outside of their groups. Knowing that
saves a quarter of all other comparisons, and small counts make each of them cheaper.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Compare, Program
from winnow.analytics.stats.plan import CategoryColumn, NumberColumn, StatisticsPlan
from winnow.analytics.stats.significance_tests import SignificanceTest

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

ROW_BITS = (12, 16, 20, 24, 28)
"""Tables are told apart by whether they have 2¹² rows, and so on."""
MAX_ROW_BITS = 36


@dataclass(frozen=True, kw_only=True)
class TableSize:
    """The plan and tests without what is empty; every count is below 2**bits."""

    plan: StatisticsPlan
    tests: list[SignificanceTest]
    bits: int


def size_up(plan: StatisticsPlan, tests: Sequence[SignificanceTest]) -> Program[TableSize]:
    """Whether any row lacks a value of a column, has one that is not listed, or belongs to no group."""
    columns = list(dict.fromkeys([*plan.numbers, *plan.categories, *(test.column for test in tests)]))
    groupings = list(dict.fromkeys([plan.grouping, *(test.grouping for test in tests)]))
    listed = list(dict.fromkeys([column for column in columns if isinstance(column, CategoryColumn)]))

    def counts(table: "OwnerTable") -> NDArray[np.int64]:
        found = [len(table)] * len(ROW_BITS)
        found += [int(_missing(column, table).sum()) for column in columns]
        found += [int((column.codes(table) == len(column.values)).sum()) for column in listed]
        found += [int((grouping.codes(table) == len(grouping.labels)).sum()) for grouping in groupings]
        return np.array(found, np.int64)

    asked = len(columns) + len(listed) + len(groupings)
    thresholds = np.r_[[1 << bits for bits in ROW_BITS], np.ones(asked, np.int64)]
    bits = yield Compare(label="what is empty", local=counts, thresholds=thresholds, bits=MAX_ROW_BITS)
    larger, answers = int(bits[: len(ROW_BITS)].sum()), iter(bits[len(ROW_BITS) :].tolist())
    missing = {column.name: next(answers) for column in columns}
    other = {column.name: next(answers) for column in listed}
    rest = {grouping: next(answers) for grouping in groupings}

    def number(column: NumberColumn) -> NumberColumn:
        return replace(column, missing=missing[column.name])

    def category(column: CategoryColumn) -> CategoryColumn:
        return replace(column, missing=missing[column.name], other=other[column.name])

    def sized(test: SignificanceTest) -> SignificanceTest:
        column = number(test.column) if isinstance(test.column, NumberColumn) else category(test.column)
        return replace(test, column=column, grouping=replace(test.grouping, rest=rest[test.grouping]))

    return TableSize(
        plan=replace(
            plan,
            numbers=tuple(number(column) for column in plan.numbers),
            categories=tuple(category(column) for column in plan.categories),
            grouping=replace(plan.grouping, rest=rest[plan.grouping]),
        ),
        tests=[sized(test) for test in tests],
        bits=(*ROW_BITS, MAX_ROW_BITS - 1)[larger] + 1,
    )


def _missing(column: NumberColumn | CategoryColumn, table: "OwnerTable") -> NDArray[np.bool_]:
    return np.isnan(column.units(table)) if isinstance(column, NumberColumn) else column.codes(table) < 0
