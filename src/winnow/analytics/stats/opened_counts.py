"""Counts as a program opens them: those with enough rows, in one sum."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Program, Sum
from winnow.analytics.stats.suppression import EMPTY, SHOWN, TOTAL, CellTable, decide_cells, hidden_count

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

Key: TypeAlias = tuple[str, ...]
"""What is counted, of which column, by which columns: ("bins", "age", "sex")."""


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
    states = yield from decide_cells(list(tables.values()), minimum, bits)
    shown = np.concatenate([each.reshape(-1) == SHOWN for each in states])
    hidden = hidden_count(states)

    def counts(table: "OwnerTable") -> NDArray[np.int64]:
        every: NDArray[np.int64] = np.concatenate([each.full_count(table).reshape(-1) for each in tables.values()])
        return every[shown]

    cells = np.full(len(shown), None, object)
    cells[np.concatenate([each.reshape(-1) == EMPTY for each in states])] = 0
    if shown.any():
        cells[shown] = yield Sum(label="counts", local=counts, length=int(shown.sum()), hidden=hidden)
    parts = np.split(cells, np.cumsum([each.size for each in states])[:-1])
    return OpenedCounts(
        {key: part.reshape(each.shape) for key, part, each in zip(tables, parts, states, strict=True)}, hidden
    )
