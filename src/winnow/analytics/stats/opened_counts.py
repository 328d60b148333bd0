"""Counts as a program opens them: those with enough rows, in one sum."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Program, Sum
from winnow.analytics.stats.suppression import EMPTY, HIDDEN, SHOWN, TOTAL, CellIndex, CellTable, Key, decide_cells


@dataclass(frozen=True)
class OpenedCounts:
    """Counts by table; None where a cell is hidden."""

    cells: Mapping[Key, NDArray[Any]]
    hidden: int

    def cell(self, key: Key, row: int = TOTAL, group: int = TOTAL) -> int | None:
        count: int | None = self.cells[key][row, group]
        return count

    def column(self, key: Key, rows: int, group: int = TOTAL) -> list[int | None]:
        """The counts of all categories of a group."""
        return list(self.cells[key][:rows, group])


def open_counts(tables: Mapping[Key, CellTable], minimum: int, bits: int) -> Program[OpenedCounts]:
    """Decide which cells may be told, and sum those."""
    cells = CellIndex(tables)
    states = yield from decide_cells(cells, minimum, bits)
    shown = np.flatnonzero(states == SHOWN)
    hidden = int((np.isin(states, HIDDEN) & cells.told).sum())
    counts = np.full(len(states), None, object)
    counts[states == EMPTY] = 0
    if len(shown):
        counts[shown] = yield Sum(
            label="counts", local=lambda table: cells.counts(table)[shown], length=len(shown), hidden=hidden
        )
    found = {key: _with_totals(counts[cells.places[key]].reshape(table.full_shape)) for key, table in tables.items()}
    return OpenedCounts(found, hidden)


def _with_totals(counts: NDArray[Any]) -> NDArray[Any]:
    """Totals over groups that were not opened, where every group's count is known."""
    for row in counts:
        if len(row) > 1 and row[TOTAL] is None and all(count is not None for count in row[:TOTAL]):
            row[TOTAL] = sum(row[:TOTAL])
    return counts
