"""An owner's rows in bins, and the margins that trees so far give them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.trees.cut_points import ColumnGrid
from winnow.analytics.trees.grown_tree import GrownTree
from winnow.analytics.trees.split_gain import BinLayout
from winnow.analytics.trees.tree_columns import Cells, TreeColumn, TreeTarget
from winnow.analytics.trees.tree_objectives import FRACTION_BITS, LOSS_BITS, MAX_LOSS, TreeObjective
from winnow.core import stream

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

GRADIENT_LIMIT = 8.0
"""In units: what is further from its prediction counts as so far."""


@dataclass(frozen=True, kw_only=True)
class TreeData:
    """What trees are grown on: the same for every party."""

    columns: tuple[TreeColumn, ...]
    target: TreeTarget
    objective: TreeObjective
    cuts: tuple[Cells, ...]
    bins: int
    """Of a column, at most."""
    base: float
    holdout: float
    """The share of rows that trees are not grown on, but measured by."""
    seed: int

    @property
    def layout(self) -> BinLayout:
        return BinLayout(tuple(len(cuts) + 1 for cuts in self.cuts))

    @property
    def most_bins(self) -> int:
        """Of all columns, whatever their cuts."""
        return sum(min(ColumnGrid(column).cells, self.bins) for column in self.columns)


def held_out(data_seed: int, place: int, share: float, rows: int) -> NDArray[np.bool_]:
    """Which rows of the owner in this place are held out: the same ones whenever it is asked."""
    return stream(data_seed, "held-out rows", place).random(rows) < share


@dataclass
class BinnedRows:
    """Rows with a target. `codes` (rows × columns) has a bin's number, that after the last where a cell is missing."""

    data: TreeData
    codes: NDArray[np.int64]
    target: NDArray[np.float64]
    held_out: NDArray[np.bool_]
    margins: NDArray[np.float32]
    trees: int = 0
    """How many rounds of trees the margins count."""
    missing: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.missing = np.array([len(cuts) + 1 for cuts in self.data.cuts])

    def follow(self, rounds: Sequence[Sequence[GrownTree]]) -> None:
        """Bring the margins to the model of these rounds."""
        for trees in rounds[self.trees :]:
            for place, tree in enumerate(trees):
                self.margins[:, place % self.margins.shape[1]] += tree.weight[tree.leaves(self.codes, self.missing)]
            self.trees += 1

    def derivatives(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Whole numbers of the fixed point (as floats, exact below 2⁵³): g and h, rows × trees of a round."""
        objective = self.data.objective
        gradient, hessian = objective.derivatives(self.margins.astype(np.float64), self.target)
        scaled = np.clip(gradient / objective.gradient_unit, -GRADIENT_LIMIT, GRADIENT_LIMIT)
        return np.rint(scaled * (1 << FRACTION_BITS)), np.rint(hessian * (1 << FRACTION_BITS))

    def losses(self) -> NDArray[np.int64]:
        """Σ loss and rows, of those that trees are grown on and of those held out."""
        losses = np.minimum(self.data.objective.losses(self.margins.astype(np.float64), self.target), MAX_LOSS)
        whole, kept = np.rint(losses * (1 << LOSS_BITS)), ~self.held_out
        numbers = [whole[kept].sum(), kept.sum(), whole[~kept].sum(), (~kept).sum()]
        return np.array(numbers, np.int64)


def binned_rows(data: TreeData, table: "OwnerTable") -> BinnedRows:
    target = data.target.cells(table)
    kept = ~np.isnan(target)
    codes = np.empty((int(kept.sum()), len(data.columns)), np.int64)
    for place, (column, cuts) in enumerate(zip(data.columns, data.cuts, strict=True)):
        cells = column.cells(table)[kept]
        codes[:, place] = np.where(np.isnan(cells), len(cuts) + 1, np.searchsorted(cuts, cells, side="right"))
    base = data.objective.base_margins(data.base).astype(np.float32)
    return BinnedRows(
        data=data,
        codes=codes,
        target=target[kept],
        held_out=held_out(data.seed, table.place, data.holdout, len(target))[kept],
        margins=np.tile(base, (len(codes), 1)),
    )
