"""The trees of a round while they grow: what every party knows of them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.trees.binned_rows import TreeData
from winnow.analytics.trees.grown_tree import ABSENT, LEAF, GrownTree, Node, tree_nodes
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


@dataclass(frozen=True, kw_only=True)
class GrowthSettings:
    depth: int
    learning_rate: float
    rules: SplitRules


class GrowingTrees:
    """From sums over all rows. With `columns`, only these are split."""

    def __init__(self, data: TreeData, settings: GrowthSettings, columns: NDArray[np.bool_] | None = None) -> None:
        self.layout: BinLayout = data.layout
        self._settings, self._trees, self._columns = settings, data.objective.trees, columns
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
        best = best_splits(stacked, totals, self.layout, self._settings.rules, self._unit, self._columns)
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
