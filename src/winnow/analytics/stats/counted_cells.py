"""Every count that a statistics question tells, or that guards something else it tells."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.stats.local_sums import bins_of, count_cells, pair_sums, present_and_missing
from winnow.analytics.stats.opened_counts import OpenedCounts
from winnow.analytics.stats.plan import CategoryColumn, Grouping, NumberColumn, StatisticsPlan
from winnow.analytics.stats.significance_tests import SignificanceTest
from winnow.analytics.stats.suppression import CellTable, Key

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

Column: TypeAlias = NumberColumn | CategoryColumn
Edges: TypeAlias = Mapping[str, NDArray[np.float64]]
"""Of the bins of each column's histogram; empty where none is asked for."""


def key_of(kind: str, column: Column, grouping: Grouping) -> Key:
    return (kind, column.name, *(each.name for each in grouping.columns))


def pair_key(one: NumberColumn, other: NumberColumn) -> Key:
    return ("pair", f"{one.name} and {other.name}")


def counted_columns(plan: StatisticsPlan, tests: Iterable[SignificanceTest]) -> dict[Key, tuple[Column, Grouping]]:
    """Each column and what it is grouped by."""
    columns: list[Column] = [*plan.numbers, *plan.categories]
    found = [(column, plan.grouping) for column in columns]
    found += [(test.column, test.grouping) for test in tests]
    return {key_of("n", column, grouping): (column, grouping) for column, grouping in found}


def cell_tables(
    plan: StatisticsPlan, edges: Edges, tests: Iterable[SignificanceTest], *, correlation: bool
) -> dict[Key, CellTable]:
    found = list[CellTable]()
    for key, (column, grouping) in counted_columns(plan, tests).items():
        if isinstance(column, CategoryColumn):
            found.append(_by_group(key, column, column.codes, column.count, grouping))
        else:
            found.append(_one_row(key, column, grouping, partial(_present_or_missing, 0, column, grouping)))
        if column.missing:
            count = partial(_present_or_missing, 1, column, grouping)
            found.append(_one_row(key_of("missing", column, grouping), column, grouping, count))
    for number in plan.numbers if edges else ():
        bins = partial(bins_of, number, edges[number.name])
        key = key_of("bins", number, plan.grouping)
        found.append(_by_group(key, number, bins, len(edges[number.name]) - 1, plan.grouping))
    for pair in combinations(plan.numbers, 2) if correlation else ():
        if pair[0].missing and pair[1].missing:
            found.append(CellTable(key=pair_key(*pair), shape=(1, 1), count=partial(_with_both, pair)))
        for one, other in (pair, pair[::-1]):
            if other.missing:
                key, count = without_key(one, other), partial(_with_one, one, other)
                found.append(CellTable(key=key, shape=(1, 1), count=count))
    return {table.key: table for table in found}


def without_key(one: NumberColumn, other: NumberColumn) -> Key:
    return ("without", other.name, one.name)


def rows_with_both(one: NumberColumn, other: NumberColumn, grouping: Grouping, counts: OpenedCounts) -> int | None:
    """None where that is hidden. Where a column lacks no value, they are the rows that have the other one.

    Sums over the rows with both could be subtracted from those over all that have one: hidden, too, is what differs
    from these by too few rows.
    """
    for has, lacks in ((one, other), (other, one)):
        if lacks.missing and counts.cell(without_key(has, lacks)) is None:
            return None
    if one.missing and other.missing:
        return counts.cell(pair_key(one, other))
    return counts.cell(key_of("n", one if one.missing else other, grouping))


def _by_group(
    key: Key, column: Column, codes: Callable[["OwnerTable"], NDArray[np.int64]], rows: int, grouping: Grouping
) -> CellTable:
    shape, listed = (rows, grouping.count), tuple(len(each.values) for each in grouping.columns)

    def count(table: "OwnerTable") -> NDArray[np.int64]:
        return count_cells(codes(table), grouping.codes(table), shape).astype(np.int64)

    return CellTable(key=key, shape=shape, count=count, complete=not column.missing, listed=listed)


def _one_row(
    key: Key, column: Column, grouping: Grouping, count: Callable[["OwnerTable"], NDArray[np.int64]]
) -> CellTable:
    listed = tuple(len(each.values) for each in grouping.columns)
    return CellTable(key=key, shape=(1, grouping.count), count=count, complete=not column.missing, listed=listed)


def _present_or_missing(place: int, column: Column, grouping: Grouping, table: "OwnerTable") -> NDArray[np.int64]:
    rows: NDArray[np.int64] = present_and_missing(column, grouping, table)[place]
    return rows


def _with_both(pair: tuple[NumberColumn, NumberColumn], table: "OwnerTable") -> NDArray[np.int64]:
    rows: NDArray[np.int64] = pair_sums(pair, table)[:1].astype(np.int64)
    return rows


def _with_one(one: NumberColumn, other: NumberColumn, table: "OwnerTable") -> NDArray[np.int64]:
    """Rows with a value of the one and none of the other."""
    return np.array([(~np.isnan(one.units(table)) & np.isnan(other.units(table))).sum()], np.int64)
