"""Quantiles by search: which of some values at least so many rows do not exceed, for many quantiles at once.

Only comparisons are opened: Σ over owners of #{x ≤ edge} ≥ ⌈q·n⌉. Each one narrows the interval of every quantile to a
part of it, into a 131,072nd of the column's range at the end.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil, floor
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Compare, Program
from winnow.analytics.stats.plan import Grouping, NumberColumn

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

STEPS = 1 << 17
"""The range is divided into so many; a quantile is told to half of one."""
ARITIES = (64, 16, 8, 4)
COMPARISONS_A_ROUND = 150
"""Up to so many comparisons, fewer rounds with more of them cost less."""

Quantiles: TypeAlias = Mapping[tuple[str, int, float], float | None]
"""By column, group and level."""
Edges: TypeAlias = NDArray[np.int64]
"""A row of steps for each search."""
Ask: TypeAlias = Callable[[Edges, NDArray[np.int64]], Program[NDArray[np.bool_]]]
"""Whether so many rows do not exceed each edge, row by row."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """The quantile of a column within a group (all groups: None), which `rows` rows do not exceed."""

    column: NumberColumn
    group: int | None
    rows: int
    steps: int = STEPS
    inputs: tuple[str, ...] = ()
    """Of a join between owners: what must be there for a row to count."""

    def edge(self, step: NDArray[np.int64] | int) -> NDArray[np.float64]:
        return self.column.low + np.asarray(step) * (self.column.range / self.steps)


def rank(level: float, count: int) -> int:
    """How many rows do not exceed a quantile (NumPy's "inverted_cdf"); rounding must not make it one more."""
    return max(1, ceil(level * count - 1e-9))


def search_quantiles(searches: list[Search], grouping: Grouping, bits: int) -> Program[list[float]]:
    """The values, where each owner counts its own rows."""

    def ask(tried: Edges, goals: NDArray[np.int64]) -> Program[NDArray[np.bool_]]:
        counts = partial(_rows_within, searches, grouping, tried)
        opened: NDArray[np.bool_] = yield Compare(label="quantiles", local=counts, thresholds=goals, bits=bits)
        return opened

    return (yield from narrow_down(searches, ask))


def narrow_down(searches: list[Search], ask: Ask) -> Program[list[float]]:
    """The values; an edge that too few rows reach is `low`, one that enough do not exceed is `high`."""
    if not searches:
        return []
    low, high = np.full(len(searches), -1), np.array([search.steps for search in searches])
    arity = next((each for each in ARITIES if (each - 1) * len(searches) <= COMPARISONS_A_ROUND), ARITIES[-1])
    goals = np.array([search.rows for search in searches])
    parts = np.arange(1, arity)
    while (high - low > 1).any():
        further = np.ceil((high - low)[:, None] * parts / arity).astype(np.int64)
        tried = np.minimum(low[:, None] + further, high[:, None])
        opened = yield from ask(tried, np.repeat(goals, arity - 1))
        reached = opened.reshape(tried.shape)
        high = np.where(reached, tried, high[:, None]).min(axis=1)
        low = np.where(~reached, tried, low[:, None]).max(axis=1)
    return [_value(search, int(step)) for search, step in zip(searches, high, strict=True)]


def _rows_within(
    searches: list[Search], grouping: Grouping, tried: NDArray[np.int64], table: "OwnerTable"
) -> NDArray[np.int64]:
    groups = grouping.codes(table)
    ordered = dict[tuple[str, int | None], NDArray[np.float64]]()
    counts = np.empty(tried.shape, np.int64)
    for number, search in enumerate(searches):
        key = (search.column.name, search.group)
        if key not in ordered:
            values = table.numbers(search.column.name)
            wanted = ~np.isnan(values) if search.group is None else ~np.isnan(values) & (groups == search.group)
            ordered[key] = np.sort(values[wanted])
        counts[number] = np.searchsorted(ordered[key], search.edge(tried[number]), side="right")
    return counts.reshape(-1)


def _value(search: Search, step: int) -> float:
    """The quantile lies in (edge(step − 1), edge(step)]: the whole number there, or its middle."""
    above, below = float(search.edge(step)), float(search.edge(step - 1))
    if step == 0:
        return search.column.low
    if search.column.whole and floor(above) > below:
        return float(floor(above))
    return (above + below) / 2
