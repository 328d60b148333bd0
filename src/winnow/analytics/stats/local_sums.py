"""What an owner works out from its own rows: counts and sums by category and group."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.stats.plan import CategoryColumn, Grouping, NumberColumn

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable


def count_cells(
    rows: NDArray[np.int64],
    groups: NDArray[np.int64],
    shape: tuple[int, int],
    weights: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """How many rows there are of each category and group, or the sum of their weights; −1 is no category."""
    kept = rows >= 0
    places = rows[kept] * shape[1] + groups[kept]
    values = None if weights is None else weights[kept]
    return np.bincount(places, weights=values, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)


def present_and_missing(
    column: NumberColumn | CategoryColumn, grouping: Grouping, table: "OwnerTable"
) -> NDArray[np.int64]:
    """Rows with a value, and rows without one, by group."""
    missing = np.isnan(column.units(table)) if isinstance(column, NumberColumn) else column.codes(table) < 0
    counts = count_cells(missing.astype(np.int64), grouping.codes(table), (2, grouping.count))
    return counts.astype(np.int64)


def bins_of(column: NumberColumn, edges: NDArray[np.float64], table: "OwnerTable") -> NDArray[np.int64]:
    """The bin of each row, −1 where it has no value; as NumPy has it, the last bin includes both edges."""
    values = table.numbers(column.name)
    bins = np.searchsorted(edges, values, side="right") - 1
    return np.where(np.isnan(values), -1, np.clip(bins, 0, len(edges) - 2))


def moment_sums(column: NumberColumn, grouping: Grouping, table: "OwnerTable") -> NDArray[np.float64]:
    """Σu and Σu² by group, and over all groups at last where there are several."""
    units = column.units(table)
    present, groups = ~np.isnan(units), grouping.codes(table)
    shape = (1, grouping.count)
    zeros = np.zeros(int(present.sum()), np.int64)
    sums = np.vstack([count_cells(zeros, groups[present], shape, units[present] ** power) for power in (1, 2)])
    return np.hstack([sums, sums.sum(axis=1, keepdims=True)]) if grouping.count > 1 else sums


def pair_sums(columns: tuple[NumberColumn, NumberColumn], table: "OwnerTable") -> NDArray[np.float64]:
    """Rows with both values, Σu, Σv, Σu², Σv² and Σuv over them."""
    u, v = (column.units(table) for column in columns)
    both = ~np.isnan(u) & ~np.isnan(v)
    u, v = u[both], v[both]
    return np.array([len(u), *(each.sum() for each in (u, v, u * u, v * v, u * v))])
