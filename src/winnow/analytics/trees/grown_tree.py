"""A tree as whole numbers: nodes in the order of a complete binary tree, three numbers each."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError

LEAF, ABSENT = -1, -2
"""In the place of a column."""
BIN_BITS = 20
LARGEST = 1e30
"""A leaf's weight, or a split's gain, that another owner's tree may have: sums of them stay finite."""
Node = tuple[int, int]
"""The tree of a round, and a place in it."""


@dataclass(frozen=True, kw_only=True)
class GrownTree:
    """Node i has children 2i + 1 and 2i + 2. Cells of the column in bin `cut` and below go left."""

    column: NDArray[np.int64]
    cut: NDArray[np.int64]
    missing_left: NDArray[np.bool_]
    weight: NDArray[np.float32]
    """Of leaves, with the learning rate."""
    gain: NDArray[np.float32]

    def words(self) -> NDArray[np.int64]:
        split = (self.column - ABSENT) << (BIN_BITS + 1) | self.cut << 1 | self.missing_left
        return np.concatenate([split, *np.stack([self.weight, self.gain]).view(np.uint32).astype(np.int64)])

    def leaves(self, codes: NDArray[np.integer], missing: NDArray[np.int64]) -> NDArray[np.int64]:
        """The leaf of each row of bin numbers (rows × columns); `missing` is the number for no cell, by column."""
        place = np.zeros(len(codes), np.int64)
        while True:
            inner = np.flatnonzero(self.column[place] >= 0)
            if not len(inner):
                return place
            place[inner] = self.child(place[inner], codes[inner], missing)

    def child(
        self, place: NDArray[np.int64], codes: NDArray[np.integer], missing: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Where rows go on from nodes that are split."""
        column = self.column[place]
        cells = codes[np.arange(len(place)), column]
        left = np.where(cells == missing[column], self.missing_left[place], cells <= self.cut[place])
        return 2 * place + 1 + ~left


def tree_nodes(depth: int) -> int:
    return (2 << depth) - 1


def tree_words(depth: int) -> int:
    return 3 * tree_nodes(depth)


def read_tree(words: NDArray[np.int64]) -> GrownTree:
    split, weight, gain = words.reshape(3, -1)
    return GrownTree(
        column=(split >> (BIN_BITS + 1)) + ABSENT,
        cut=split >> 1 & (1 << BIN_BITS) - 1,
        missing_left=(split & 1).astype(bool),
        weight=weight.astype(np.uint32).view(np.float32),
        gain=gain.astype(np.uint32).view(np.float32),
    )


def refuse_impossible(tree: GrownTree, bins: Sequence[int]) -> None:
    """Another owner grew this tree, on columns with so many `bins`: rows must find a leaf in it, of a finite weight."""
    inner = np.flatnonzero(tree.column >= 0)
    columns, children = tree.column[inner], np.concatenate([2 * inner + 1, 2 * inner + 2])
    possible = (
        np.all(tree.column >= ABSENT)
        and np.all(columns < len(bins))
        and np.all(tree.cut[inner] < np.array(bins)[columns])
        and np.all(children < len(tree.column))
        and np.all(tree.column[children] != ABSENT)
        and np.all(np.abs(tree.weight) <= LARGEST)
        and np.all((tree.gain >= 0) & (tree.gain <= LARGEST))
    )
    if not possible:
        raise DataError("an owner tells a tree that cannot be: its splits or weights are impossible")
