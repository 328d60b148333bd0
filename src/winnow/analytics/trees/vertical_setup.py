"""What the parties of vertical trees know before any row: columns of both owners, the target, how trees grow."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.intersect.intersect_question import identifier_text
from winnow.analytics.program import run_plain
from winnow.analytics.trees.cut_points import find_cuts
from winnow.analytics.trees.growing_trees import GrowthSettings
from winnow.analytics.trees.tree_columns import Cells, TreeColumn, TreeTarget
from winnow.core import DataError

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

MAX_ROWS = 1 << 19
"""In common: sums of second derivatives and counts share a word."""
MAX_WORDS = 1 << 26
"""Of the masked bins that the third party holds."""


@dataclass(frozen=True, kw_only=True)
class VerticalSetup:
    key: str
    own: tuple[TreeColumn, ...]
    """Columns of the owner that has the target."""
    theirs: tuple[TreeColumn, ...]
    names: tuple[str, ...]
    """Of all columns, its own first; those that both tables have are named with their table."""
    target: TreeTarget
    growth: GrowthSettings
    minimum: int
    """Rows of a bin, where the owner has so many."""
    bins: int
    early_stopping: bool
    holdout: float
    seed: int
    rows: int
    """How many are in common."""

    @property
    def trees(self) -> int:
        """Of a round."""
        return len(self.target.classes) if len(self.target.classes) > 2 else 1


def row_keys(table: "OwnerTable", column: str) -> list[str]:
    """What each row is matched by; empty if it has no key."""
    return ["" if cell is None else identifier_text(cell) for cell in table.rows.column(column).to_pylist()]


def matched_keys(table: "OwnerTable", column: str) -> list[str]:
    """The keys of all rows that have one; DataError if two rows share one."""
    found = [key for key in row_keys(table, column) if key]
    if len({*found}) < len(found):
        raise DataError(f"two of its rows have the same '{column}'; rows are matched one to one: keep one of each")
    return sorted(found)


def aligned_rows(table: "OwnerTable", column: str) -> "OwnerTable":
    """The rows that both owners have, in the order of their keys."""
    place_of = {key: place for place, key in enumerate(row_keys(table, column)) if key}
    try:
        places = [place_of[key] for key in table.matched]
    except KeyError:
        raise DataError("its rows are no longer those that were matched") from None
    return replace(table, rows=table.rows.take(places))


def own_cuts(columns: tuple[TreeColumn, ...], setup: VerticalSetup, table: "OwnerTable") -> list[Cells]:
    """An owner's cuts, from its own rows: as several owners of the same rows would find them together."""
    return run_plain(lambda: find_cuts(columns, setup.bins, setup.minimum, masked=False), [table])


def bin_codes(columns: tuple[TreeColumn, ...], cuts: list[Cells], table: "OwnerTable") -> NDArray[np.int64]:
    """Rows × columns; a missing cell has the number after the last bin."""
    codes = np.empty((len(table), len(columns)), np.int64)
    for place, (column, own) in enumerate(zip(columns, cuts, strict=True)):
        cells = column.cells(table)
        codes[:, place] = np.where(np.isnan(cells), len(own) + 1, np.searchsorted(own, cells, side="right"))
    return codes
