"""Where columns are cut into bins: at quantiles of all owners' cells, *between* the values that many rows have.

A plain grid of quantiles wastes its bins on a value that half of the rows have. Here a value with more rows than a bin
has one of its own, and the other rows are divided evenly among the other bins. A column's range is a grid of cells;
rows are counted in coarse parts of it first, and parts with many rows are divided further. Columns with no more values
than bins need no counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Program, SumChain
from winnow.analytics.trees.tree_columns import Cells, TreeColumn
from winnow.privacy.shares.masked_sum import SummedVector, VectorProgram

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

ARITY = 64
MAX_CELLS = ARITY**3
"""Of a column's grid."""
MAX_ROUNDS = 6
"""Of counts; three come to single cells, further ones to parts that look heavy once heavier ones are told."""
COUNT_BITS = 32
LAST_CUT = np.finfo(np.float32).max
"""Above every cell: a split there tells missing cells from all others."""


@dataclass(frozen=True)
class Part:
    """Cells `first` to `end` − 1 of a column's grid, and how many rows have theirs among them."""

    first: int
    end: int
    rows: int

    @property
    def cells(self) -> int:
        return self.end - self.first


class ColumnGrid:
    """A column's range in equal cells; of whole numbers, one a cell where there are not too many."""

    def __init__(self, column: TreeColumn) -> None:
        self._column = column
        span = column.high - column.low + column.whole
        self.cells = min(MAX_CELLS, ceil(span)) if column.whole else MAX_CELLS
        self._width = span / self.cells

    def places(self, cells: Cells) -> NDArray[np.int64]:
        """The cell of each value that is there, in order."""
        known = cells[~np.isnan(cells)].astype(np.float64)
        return np.sort(np.clip((known - self._column.low) / self._width, 0, self.cells - 1).astype(np.int64))

    def edge(self, cell: int) -> float:
        """Below which the cells before it lie; of whole numbers, half way between two."""
        half = 0.5 if self._column.whole and self._width == 1 else 0.0
        return self._column.low + cell * self._width - half


def find_cuts(columns: Sequence[TreeColumn], bins: int, minimum: int, *, masked: bool) -> Program[list[Cells]]:
    """The cuts of each column, in order: a cell goes left of a cut if it is smaller."""
    counted = [column for column in columns if ColumnGrid(column).cells > bins]
    opened = np.zeros((0, bins), np.int64)
    if counted:
        opened = yield SumChain(
            label="cut points",
            vectors=lambda table: _search(counted, bins, minimum, table),
            length=len(counted) * bins,
            sums=MAX_ROUNDS,
            words=len(counted) * ARITY * (1 + (MAX_ROUNDS - 1) * 2 * bins),
            shows="how many rows have a value in each part of a column's range, also where they are few",
            masked=masked,
        )
    found = dict(zip((column.name for column in counted), opened.reshape(len(counted), bins), strict=True))
    return [_cuts(column, found.get(column.name)) for column in columns]


def _cuts(column: TreeColumn, opened: NDArray[np.int64] | None) -> Cells:
    """From the cells where bins begin, of which the first number says how many there are."""
    grid = ColumnGrid(column)
    begins = range(1, grid.cells) if opened is None else opened[1 : 1 + opened[0]].tolist()
    return np.unique(np.array([grid.edge(cell) for cell in begins], np.float32))


def _search(columns: Sequence[TreeColumn], bins: int, minimum: int, table: "OwnerTable | None") -> VectorProgram:
    grids = [ColumnGrid(column) for column in columns]
    ordered = (
        None
        if table is None
        else [grid.places(column.cells(table)) for grid, column in zip(grids, columns, strict=True)]
    )
    parts = [[Part(0, grid.cells, -1)] for grid in grids]
    for _ in range(MAX_ROUNDS):
        divided = [_divisions(own, bins) for own in parts]
        length = sum(len(edges) - 1 for own in divided for edges in own.values())
        if not length:
            break
        values = None if ordered is None else _counts(ordered, divided)
        opened = yield SummedVector(length=length, values=values, bits=COUNT_BITS)
        parts = _refined(parts, divided, opened.tolist())
    found = np.zeros((len(columns), bins), np.int64)
    for row, own in zip(found, parts, strict=True):
        begins = choose_bins(own, bins, minimum)
        row[0], row[1 : 1 + len(begins)] = len(begins), begins
    return found.reshape(-1)


def _divisions(parts: list[Part], bins: int) -> dict[int, NDArray[np.int64]]:
    """Edges at which parts with many rows are divided, by the part's place."""
    goal = _rows_a_bin([part.rows for part in parts], bins) / 2
    heaviest = sorted(range(len(parts)), key=lambda place: -parts[place].rows)[: 2 * bins]
    return {
        place: np.unique(np.append(np.arange(part.first, part.end, _step(part.cells)), part.end))
        for place in sorted(heaviest)
        if (part := parts[place]).cells > 1 and (part.rows < 0 or part.rows > goal)
    }


def _step(cells: int) -> int:
    """So many cells a part that the last division comes to single ones."""
    step = 1
    while step * ARITY < cells:
        step *= ARITY
    return step


def _counts(ordered: list[NDArray[np.int64]], divided: list[dict[int, NDArray[np.int64]]]) -> NDArray[np.int64]:
    counts = [
        np.diff(np.searchsorted(places, edges))
        for places, own in zip(ordered, divided, strict=True)
        for edges in own.values()
    ]
    return np.concatenate(counts).astype(np.int64)


def _refined(
    parts: list[list[Part]], divided: list[dict[int, NDArray[np.int64]]], opened: list[int]
) -> list[list[Part]]:
    counts, refined = iter(opened), []
    for own, divisions in zip(parts, divided, strict=True):
        finer = list[Part]()
        for place, part in enumerate(own):
            edges = divisions[place].tolist() if place in divisions else None
            finer += [part] if edges is None else [Part(a, b, next(counts)) for a, b in pairwise(edges)]
        refined.append(finer)
    return refined


def _rows_a_bin(rows: Sequence[int], bins: int) -> float:
    """How many rows a bin has, once values with more have bins of their own."""
    left, free = sorted(rows), bins
    while left and free > 1 and left[-1] * free >= sum(left):
        left.pop()
        free -= 1
    return max(sum(left), 0) / free


def choose_bins(parts: Sequence[Part], bins: int, minimum: int) -> list[int]:
    """The cells where bins begin, without the first: none of the bins has fewer than `minimum` rows."""
    goal = max(_rows_a_bin([part.rows for part in parts], bins), minimum, 1)
    begins, inside = list[int](), 0
    for part in parts:
        if part.rows >= goal and inside >= minimum:
            begins, inside = [*begins, part.first], 0
        inside += part.rows
        if inside >= goal:
            begins, inside = [*begins, part.end], 0
    if begins and inside < max(minimum, 1):
        begins.pop()
    return sorted({*begins})[: bins - 1]
