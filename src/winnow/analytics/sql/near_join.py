"""A join of two owners' rows by distance while it is computed: products over the cells of a grid, which nobody sees.

With a₍c₎ from the rows of the one in cell c, and b₍c₎ from the rows of the other within reach of its middle,
Σ over pairs = Σ꜀ a₍c₎ · b₍c₎. It takes as many numbers as the grid has cells, however many rows there are, and neither
owner learns in which cells the other has any.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Compare, Product, Program
from winnow.analytics.sql.matched_columns import JOINED
from winnow.analytics.sql.matched_join import Cell, MatchedJoin
from winnow.analytics.sql.matched_rows import KeyedSum, MatchedRows
from winnow.analytics.sql.opened_sums import Summand
from winnow.analytics.sql.owner_rows import Group
from winnow.analytics.sql.plan_near_join import GridAxis, NearGrid
from winnow.analytics.sql.query_plan import JoinSide
from winnow.analytics.sql.row_sets import ALL_ROWS
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.core import DataError
from winnow.privacy.shares.product_step import MAX_COMPARED_BITS

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

ROWS = Summand(rows=ALL_ROWS)
MAX_PAIR_BITS = 50


class NearRows(MatchedRows):
    """One owner's rows by cell; those without a place are in none."""

    @property
    def grid(self) -> NearGrid:
        assert self._plan.near is not None
        return self._plan.near

    def count(self, table: "OwnerTable") -> int:
        """Of all rows: how many a condition chooses may tell of one person."""
        return int(self._execute(table, self.side.matched_sql).num_rows)

    def matrix(self, table: "OwnerTable", groups: Sequence[Group], factors: Sequence[KeyedSum]) -> NDArray[np.int64]:
        cells, kept = self._places(table)
        plain = [replace(each, reach="own", summand=each.summand or ROWS) for each in factors]
        found = self._columns(table, groups, plain, cells, kept, self.grid.cells)
        for place, factor in enumerate(factors):
            if factor.reach != "own":
                near = within_reach(found[:, place], self.grid)
                found[:, place] = near if factor.reach == "sum" else near > 0
        return found

    def _places(self, table: "OwnerTable") -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The cell of each kept row, and which rows are kept."""
        rows = self._execute(table, self.side.local_sql)
        across, up = (rows.column(f"{JOINED}{place}") for place in (0, 1))
        kept = across.is_valid().to_numpy() & up.is_valid().to_numpy()
        steps = [
            _step(column.to_numpy().astype(np.float64)[kept], axis)
            for column, axis in zip((across, up), self.grid.axes, strict=True)
        ]
        return steps[1] * self.grid.axes[0].count + steps[0], kept


def _step(values: NDArray[np.float64], axis: GridAxis) -> NDArray[np.int64]:
    return np.clip(np.rint((values - axis.low) / axis.step), 0, axis.count - 1).astype(np.int64)


def within_reach(values: NDArray[np.int64], grid: NearGrid) -> NDArray[np.int64]:
    """The sum, for each cell, of the cells no farther than the radius: by running sums along each row of the grid."""
    across, up = grid.axes
    cells = values.reshape(up.count, across.count)
    sums = np.concatenate([np.zeros((up.count, 1), np.int64), np.cumsum(cells, axis=1)], axis=1)
    places = np.arange(across.count)
    found = np.zeros_like(cells)
    for rise in range(up.count):
        distances = np.sqrt((places * across.step) ** 2 + (rise * up.step) ** 2)
        width = int((distances < grid.radius if grid.strict else distances <= grid.radius).sum()) - 1
        if width < 0:
            break
        near = sums[:, np.minimum(places + width, across.count - 1) + 1] - sums[:, np.maximum(places - width, 0)]
        found[: up.count - rise] += near[rise:]
        if rise:
            found[rise:] += near[: up.count - rise]
    return found.reshape(-1)


class NearJoin(MatchedJoin):
    def _rows_of(self, side: JoinSide, held: dict[str, TableDeclaration]) -> MatchedRows:
        return NearRows(side, self.plan, held, self.terms.minimum)

    def match(self) -> Program[bool]:
        """Nothing is matched; all that is told is about how many pairs there may be."""
        assert self.plan.near is not None
        self.size = self.plan.near.cells

        def counts(table: "OwnerTable") -> NDArray[np.int64]:
            side = self.side(table)
            assert isinstance(side, NearRows)
            count = side.count(table)
            if count >= 1 << MAX_COMPARED_BITS:
                raise DataError(f"a join by distance takes fewer than {1 << MAX_COMPARED_BITS:,} rows of an owner")
            return np.full(MAX_PAIR_BITS, count.bit_length(), np.int64)

        thresholds = np.arange(1, MAX_PAIR_BITS + 1, dtype=np.int64)
        several = yield Compare(label="about how many pairs of rows", local=counts, thresholds=thresholds, bits=8)
        self.bits = max(1, int(several.sum()))
        return True

    def compare(
        self, label: str, cells: Sequence[Cell], threshold: int | NDArray[np.int64]
    ) -> Program[NDArray[np.bool_]]:
        """Whether so many rows of each owner have one of the other within reach."""
        lefts = [(replace(left, summand=ROWS), replace(right, reach="any")) for left, right in cells]
        rights = [(replace(left, reach="any"), replace(right, summand=ROWS)) for left, right in cells]
        first = yield from super().compare(f"{label} of one owner", lefts, threshold)
        second = yield from super().compare(f"{label} of the other", rights, threshold)
        return first & second

    def product(
        self, label: str, cells: Sequence[Cell], *, thresholds: NDArray[np.int64] | None = None, hidden: int = 0
    ) -> Product:
        if thresholds is None:
            cells = [(left, replace(right, reach="sum")) for left, right in cells]
        return super().product(label, cells, thresholds=thresholds, hidden=hidden)
