"""Grows the trees of a round level by level, with one sum each: of gradients, second derivatives and rows by node and
bin.

Of two siblings only one is summed, the smaller; the other is what is left of their parent. A node is split where both
children have `minimum` rows. The first sum tells, too, how well the trees before do.
"""

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.trees.binned_rows import BinnedRows, TreeData
from winnow.analytics.trees.growing_trees import GrowingTrees, GrowthSettings
from winnow.analytics.trees.grown_tree import Node
from winnow.analytics.trees.node_sums import NodeSums
from winnow.analytics.trees.split_gain import Sums
from winnow.analytics.trees.tree_objectives import FRACTION_BITS
from winnow.privacy.shares.masked_sum import SummedVector, VectorProgram

LOSS_WORDS = 4


def grow_round(
    data: TreeData,
    settings: GrowthSettings,
    rows: BinnedRows | None,
    sample: NDArray[np.float64] | None = None,
    columns: NDArray[np.bool_] | None = None,
) -> VectorProgram:
    """The losses before this round (4 numbers), then the trees of the round in words. `rows` follow the trees before;
    `sample` says how often each counts, and with `columns` only these are split.
    """
    growth = GrowingTrees(data, settings, columns)
    channels = (0, 2) if data.objective.counts_hessian and sample is None else (0, 1, 2)
    trees, width = data.objective.trees, growth.layout.total
    own = None if rows is None else NodeSums(rows, np.ones(len(rows.codes)) if sample is None else sample)
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
