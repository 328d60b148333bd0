"""An owner's sums of gradients, second derivatives and rows, by node and bin."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.trees.binned_rows import BinnedRows
from winnow.analytics.trees.grown_tree import GrownTree, Node


class NodeSums:
    """An owner's rows during a round: at which node of each tree they are. `sample` says how often each counts among
    derivatives. Among rows it counts once: a leaf has its minimum of different rows, however often they were drawn.
    """

    def __init__(self, rows: BinnedRows, sample: NDArray[np.float64]) -> None:
        self._layout = rows.data.layout
        self._rows, self._trees = rows, rows.data.objective.trees
        self._columns = np.arange(len(rows.data.columns))
        self._kept = np.flatnonzero(~rows.held_out & (sample > 0))
        self._codes = rows.codes[self._kept]
        gradient, hessian = rows.derivatives()
        weight = sample[self._kept][:, None]
        self._weights = [
            gradient[self._kept] * weight,
            hessian[self._kept] * weight,
            np.ones((len(weight), self._trees)),
        ]
        self._places = np.zeros((self._trees, len(self._kept)), np.int64)
        present = self._codes < rows.missing
        self._flat = np.where(present, self._codes + self._layout.starts, self._layout.total)

    def totals(self, channels: Sequence[int]) -> NDArray[np.int64]:
        """Of the roots, trees × sums."""
        return np.stack([self._weights[channel].sum(axis=0) for channel in channels], axis=1).astype(np.int64)

    def sums(self, nodes: Sequence[Node], channels: Sequence[int]) -> NDArray[np.int64]:
        """Nodes × bins × sums. The sums of doubles are exact: they are whole numbers below 2⁵³."""
        bins = self._layout.total + 1
        found = np.zeros((len(nodes), bins, len(channels)), np.int64)
        for tree in {tree for tree, _ in nodes}:
            numbers = [(number, place) for number, (own, place) in enumerate(nodes) if own == tree]
            slot_of = np.full(self._places[tree].max(initial=0) + 1, -1)
            for slot, (_, place) in enumerate(numbers):
                if place < len(slot_of):
                    slot_of[place] = slot
            slots = slot_of[self._places[tree]]
            here = np.flatnonzero(slots >= 0)
            index = (self._flat[here] + (slots[here] * bins)[:, None]).reshape(-1)
            for at, channel in enumerate(channels):
                weights = np.repeat(self._weights[channel][here, tree], len(self._columns))
                counted = np.bincount(index, weights=weights, minlength=len(numbers) * bins)
                found[[number for number, _ in numbers], :, at] = counted.reshape(len(numbers), bins)
        return found[:, :-1]

    def move(self, tree: int, places: NDArray[np.int64]) -> None:
        """Where in the tree all rows are now."""
        self._places[tree] = places[self._kept]

    def descend(self, tree: int, grown: GrownTree) -> None:
        places = self._places[tree]
        inner = np.flatnonzero(grown.column[places] >= 0)
        places[inner] = grown.child(places[inner], self._codes[inner], self._rows.missing)
