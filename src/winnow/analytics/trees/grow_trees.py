"""Grows the trees of a round level by level, with one sum each: of gradients, second derivatives and rows by node and
bin.

Of two siblings only one is summed, the smaller; the other is what is left of their parent. A node is split where both
children have `minimum` rows. The first sum tells, too, how well the trees before do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.trees.binned_rows import BinnedRows, TreeData
from winnow.analytics.trees.grown_tree import ABSENT, LEAF, GrownTree, tree_nodes
from winnow.analytics.trees.split_gain import (
    HESSIAN,
    ROWS,
    BinLayout,
    SplitRules,
    Splits,
    Sums,
    best_splits,
    leaf_weights,
)
from winnow.analytics.trees.tree_objectives import FRACTION_BITS
from winnow.privacy.shares.masked_sum import SummedVector, VectorProgram

LOSS_WORDS = 4
Node = tuple[int, int]
"""The tree of a round, and a place in it."""


@dataclass(frozen=True, kw_only=True)
class GrowthSettings:
    depth: int
    learning_rate: float
    rules: SplitRules


class _RoundRows:
    """An owner's rows during a round: at which node of each tree they are."""

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
            np.broadcast_to(weight, (len(weight), self._trees)),
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

    def descend(self, tree: int, grown: GrownTree) -> None:
        places = self._places[tree]
        inner = np.flatnonzero(grown.column[places] >= 0)
        places[inner] = grown.child(places[inner], self._codes[inner], self._rows.missing)


class _Growth:
    """Trees that are growing: what every party knows of them."""

    def __init__(self, data: TreeData, settings: GrowthSettings) -> None:
        self.layout: BinLayout = data.layout
        self._settings, self._trees = settings, data.objective.trees
        unit = data.objective.gradient_unit
        self._unit = np.array([unit, 1.0, 1 << FRACTION_BITS]) / (1 << FRACTION_BITS)
        nodes = tree_nodes(settings.depth)
        self.grown = [
            GrownTree(
                column=np.full(nodes, ABSENT),
                cut=np.zeros(nodes, np.int64),
                missing_left=np.zeros(nodes, bool),
                weight=np.zeros(nodes, np.float32),
                gain=np.zeros(nodes, np.float32),
            )
            for _ in range(self._trees)
        ]
        self.totals = dict[Node, Sums]()
        self._sums = dict[Node, Sums]()

    def begin(self, totals: Sums) -> list[Node]:
        self.totals = {(tree, 0): totals[tree] for tree in range(self._trees)}
        return self._open(list(self.totals))

    def _open(self, nodes: list[Node]) -> list[Node]:
        """Those that may be split; the others become leaves."""
        splittable = []
        for node in nodes:
            rules, total = self._settings.rules, self.totals[node]
            deep = node[1] >= tree_nodes(self._settings.depth - 1)
            enough = total[ROWS] >= 2 * max(rules.minimum, 1)
            if not deep and enough and total[HESSIAN] * self._unit[HESSIAN] >= 2 * rules.min_child_weight:
                splittable.append(node)
            else:
                self._make_leaf(node)
        return splittable

    def _make_leaf(self, node: Node) -> None:
        tree, place = node
        weight = leaf_weights(self.totals[node], self._settings.rules, self._unit) * self._settings.learning_rate
        self.grown[tree].column[place] = LEAF
        self.grown[tree].weight[place] = np.float32(weight)

    def summed(self, nodes: list[Node]) -> list[Node]:
        """Of which nodes sums are needed: of two siblings that of fewer rows."""
        needed = {*nodes}
        chosen = []
        for tree, place in nodes:
            sibling = (tree, ((place - 1) ^ 1) + 1)
            if place == 0 or sibling not in needed:
                chosen.append((tree, place))
            else:
                own, other = self.totals[tree, place][ROWS], self.totals[sibling][ROWS]
                if (own, place) < (other, sibling[1]):
                    chosen.append((tree, place))
        return chosen

    def split(self, nodes: list[Node], summed: list[Node], opened: Sums) -> list[Node]:
        """Split nodes as their sums say; their children that may be split further."""
        sums = dict(zip(summed, opened, strict=True))
        for tree, place in nodes:
            if (tree, place) not in sums:
                sibling = (tree, ((place - 1) ^ 1) + 1)
                sums[tree, place] = self._sums[tree, (place - 1) // 2] - sums[sibling]
        self._sums = sums
        totals = np.stack([self.totals[node] for node in nodes])
        stacked = np.stack([sums[node] for node in nodes])
        best = best_splits(stacked, totals, self.layout, self._settings.rules, self._unit)
        return self._open([child for at, node in enumerate(nodes) for child in self._children(node, best, at)])

    def _children(self, node: Node, best: Splits, at: int) -> list[Node]:
        if best.gain[at] == 0:
            self._make_leaf(node)
            return []
        (tree, place), grown = node, self.grown[node[0]]
        grown.column[place], grown.cut[place] = best.column[at], best.cut[at]
        grown.missing_left[place], grown.gain[place] = best.missing_left[at], best.gain[at]
        left, right = (tree, 2 * place + 1), (tree, 2 * place + 2)
        self.totals[left], self.totals[right] = best.left[at], self.totals[node] - best.left[at]
        return [left, right]


def grow_round(
    data: TreeData, settings: GrowthSettings, rows: BinnedRows | None, sample: NDArray[np.float64] | None = None
) -> VectorProgram:
    """The losses before this round (4 numbers), then the trees of the round in words. `rows` follow the trees before;
    `sample` says how often each counts.
    """
    growth, channels = _Growth(data, settings), (0, 2) if data.objective.counts_hessian else (0, 1, 2)
    trees, width = data.objective.trees, growth.layout.total
    own = None if rows is None else _RoundRows(rows, np.ones(len(rows.codes)) if sample is None else sample)
    nodes: list[Node] = [(tree, 0) for tree in range(trees)]
    values = None
    if own is not None and rows is not None:
        values = np.concatenate(
            [rows.losses(), own.totals(channels).reshape(-1), own.sums(nodes, channels).reshape(-1)]
        )
    head, per_tree = LOSS_WORDS, len(channels) * trees
    opened = yield SummedVector(length=head + per_tree * (1 + width), values=values)
    losses, totals = opened[:head], _three(opened[head : head + per_tree].reshape(trees, -1))
    splittable = growth.begin(totals)
    summed, sums = nodes, opened[head + per_tree :]
    while splittable:
        splittable = growth.split(splittable, summed, _three(sums.reshape(len(summed), width, len(channels))))
        if not splittable:
            break
        summed = growth.summed(splittable)
        if own is not None:
            for tree in range(trees):
                own.descend(tree, growth.grown[tree])
            values = own.sums(summed, channels).reshape(-1)
        sums = yield SummedVector(length=len(summed) * width * len(channels), values=values)
    return np.concatenate([losses, *(tree.words() for tree in growth.grown)])


def _three(sums: Sums) -> Sums:
    """Gradients, second derivatives and rows; where every second derivative is 1, of two numbers."""
    if sums.shape[-1] == 3:
        return sums
    return np.stack([sums[..., 0], sums[..., 1] << FRACTION_BITS, sums[..., 1]], axis=-1)
