"""A grown tree as an answer tells it: what prediction needs, and nothing of the rows behind its nodes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.trees.cut_points import LAST_CUT
from winnow.analytics.trees.grown_tree import GrownTree
from winnow.analytics.trees.tree_columns import Cells


def tree_record(tree: GrownTree, cuts: Sequence[Cells], output: int) -> dict[str, Any]:
    """Nodes level by level: a node's left child (−1 of a leaf), which the right one follows; the column; the cut below
    which cells go left, or a leaf's weight. `output` is the class that the tree is for.
    """
    places = _present(tree)
    node_of = {place: node for node, place in enumerate(places)}
    return {
        "output": output,
        "left": [node_of.get(2 * place + 1, -1) for place in places],
        "column": [max(int(tree.column[place]), 0) for place in places],
        "condition": [_condition(tree, place, cuts) for place in places],
        "missing_left": [int(tree.missing_left[place]) for place in places],
    }


def _present(tree: GrownTree) -> list[int]:
    """Places of nodes, level by level."""
    places: NDArray[np.int64] = np.array([0])
    found = list[int]()
    while len(places):
        found += places.tolist()
        inner = places[tree.column[places] >= 0]
        places = np.sort(np.concatenate([2 * inner + 1, 2 * inner + 2]))
    return found


def _condition(tree: GrownTree, place: int, cuts: Sequence[Cells]) -> float:
    if tree.column[place] < 0:
        return shortest(tree.weight[place])
    own, cut = cuts[tree.column[place]], tree.cut[place]
    return shortest(own[cut] if cut < len(own) else np.float32(LAST_CUT))


def shortest(value: np.float32) -> float:
    """As short as it can be written and still be the same float32."""
    return float(str(value))
