"""Trees that owners grow on their own rows: averaged (bagging, random forests), or one owner after another (cyclic).

They are grown like those of all rows, on the same cuts. Every tree tells of one owner's rows, and everybody gets it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import SumChain
from winnow.analytics.trees.binned_rows import BinnedRows, TreeData
from winnow.analytics.trees.grow_trees import LOSS_WORDS, grow_round
from winnow.analytics.trees.growing_trees import GrowthSettings
from winnow.analytics.trees.grown_tree import GrownTree, read_tree, refuse_impossible, tree_words
from winnow.core import stream
from winnow.privacy.shares.masked_sum import SummedVector, VectorProgram, add_up

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

Method = Literal["bagging", "cyclic", "forest"]
COLUMN_SHARE = 0.8
"""Of the columns that a tree of a forest may split."""


@dataclass(frozen=True, kw_only=True)
class OwnerTrees:
    """Rounds in which owners grow trees of their own. A round of bagging or of a forest has one of each owner, scaled
    so that they count as one; a forest's rounds count as one tree together.
    """

    method: Method
    data: TreeData
    settings: GrowthSettings
    owners: int
    rounds: int

    @property
    def slots(self) -> int:
        """How many owners grow trees in a round."""
        return 1 if self.method == "cyclic" else self.owners

    @property
    def words(self) -> int:
        return self.data.objective.trees * tree_words(self.settings.depth)

    def step(self, number: int, rows: "Callable[[OwnerTable], BinnedRows]") -> SumChain:
        """Round `number`; `rows` gives an owner's, with the margins from which its trees go on."""

        def vectors(table: "OwnerTable | None") -> VectorProgram:
            length = LOSS_WORDS + self.slots * self.words
            return (
                yield SummedVector(
                    length=length, values=None if table is None else self._own(number, rows(table), table.place)
                )
            )

        return SumChain(
            label="each owner's tree" if self.method != "cyclic" else "an owner's tree",
            vectors=vectors,
            length=LOSS_WORDS + self.slots * self.words,
            sums=1,
            words=LOSS_WORDS + self.slots * self.words,
            shows=(
                "trees that an owner grew on its own rows: their splits, and weights of leaves with "
                f"{self.settings.rules.minimum} of its rows or more"
            ),
            by_owner=True,
        )

    def trees(self, opened: NDArray[np.int64]) -> list[GrownTree]:
        """Those of a round, by owner, with the weight that they have in the model."""
        scale = np.float32(1 / (self.slots * (self.rounds if self.method == "forest" else 1)))
        count = self.slots * self.data.objective.trees
        found = [read_tree(own) for own in opened[LOSS_WORDS:].reshape(count, -1)]
        for tree in found:
            refuse_impossible(tree, [len(own) + 1 for own in self.data.cuts])
        return [replace(tree, weight=tree.weight * scale) for tree in found]

    def _own(self, number: int, rows: BinnedRows, place: int) -> NDArray[np.int64]:
        """What an owner adds: losses, and its trees in its slot."""
        found = np.zeros(LOSS_WORDS + self.slots * self.words, np.int64)
        found[:LOSS_WORDS] = rows.losses()
        slot = 0 if self.method == "cyclic" else place
        if self.method == "cyclic" and number % self.owners != place:
            return found
        sample, columns = self._drawn(number, rows, place)
        grown_on = ~rows.held_out if sample is None else ~rows.held_out & (sample > 0)
        if np.count_nonzero(grown_on) >= self.settings.rules.minimum:
            first = LOSS_WORDS + slot * self.words
            grown = add_up([grow_round(self.data, self.settings, rows, sample, columns)])
            found[first : first + self.words] = grown[LOSS_WORDS:]
        return found

    def _drawn(
        self, number: int, rows: BinnedRows, place: int
    ) -> tuple[NDArray[np.float64] | None, NDArray[np.bool_] | None]:
        """A forest's trees take rows drawn with replacement (how often each), and some of the columns."""
        if self.method != "forest":
            return None, None
        rng, count = stream(self.data.seed, "forest", place, number), len(rows.codes)
        sample = np.bincount(rng.integers(count, size=count), minlength=count).astype(np.float64)
        columns = rng.random(len(self.data.columns)) < COLUMN_SHARE
        columns[rng.integers(len(columns))] = True
        return sample, columns
