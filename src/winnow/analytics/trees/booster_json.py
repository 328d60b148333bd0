"""Grown trees in the format of XGBoost's JSON models, which its `Booster` loads.

Of a tree only what prediction needs is there: gains, sums of second derivatives and weights of inner nodes, which tell
of the rows behind them, are 0.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.trees.cut_points import LAST_CUT
from winnow.analytics.trees.grown_tree import GrownTree
from winnow.analytics.trees.tree_columns import Cells

NO_PARENT = 2147483647
FORMAT_VERSION = [3, 0, 0]
"""The oldest XGBoost whose format this is."""


def booster_text(
    rounds: Sequence[Sequence[GrownTree]],
    *,
    names: Sequence[str],
    cuts: Sequence[Cells],
    objective: str,
    classes: int,
    base_score: float,
) -> str:
    """A model; tree i of a round is for class i modulo their number."""
    outputs = classes if classes > 2 else 1
    document = booster_document(
        [_record(number, tree, cuts) for number, tree in enumerate(tree for own in rounds for tree in own)],
        np.cumsum([0, *(len(own) for own in rounds)]).tolist(),
        [place % outputs for own in rounds for place in range(len(own))],
        names=names,
        objective=objective,
        classes=classes,
        base_score=base_score,
    )
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def booster_document(
    trees: Sequence[dict[str, Any]],
    ends: Sequence[int],
    outputs: Sequence[int],
    *,
    names: Sequence[str],
    objective: str,
    classes: int,
    base_score: float,
) -> dict[str, Any]:
    """`ends` says where rounds of trees end, `outputs` for which class each tree is."""
    multi = classes > 2
    model = {
        "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": list(ends),
        "tree_info": list(outputs),
        "trees": list(trees),
    }
    about: dict[str, Any] = (
        {"softmax_multiclass_param": {"num_class": str(classes)}}
        if multi
        else {"reg_loss_param": {"scale_pos_weight": "1"}}
    )
    score = ",".join([str(_shortest(np.float32(base_score)))] * (classes if multi else 1))
    learner = {
        "attributes": {},
        "feature_names": list(names),
        "feature_types": ["float"] * len(names),
        "gradient_booster": {"model": model, "name": "gbtree"},
        "learner_model_param": {
            "base_score": f"[{score}]",
            "boost_from_average": "1",
            "num_class": str(classes if multi else 0),
            "num_feature": str(len(names)),
            "num_target": "1",
        },
        "objective": {"name": objective, **about},
    }
    return {"learner": learner, "version": FORMAT_VERSION}


def tree_record(
    number: int,
    *,
    left: Sequence[int],
    right: Sequence[int],
    columns: Sequence[int],
    conditions: Sequence[float],
    missing_left: Sequence[int],
    parents: Sequence[int],
    width: int,
) -> dict[str, Any]:
    """A tree of XGBoost's. `conditions` are cuts, and weights of leaves; the root's parent is −1."""
    nodes = len(left)
    return {
        "base_weights": [0.0] * nodes,
        "categories": [],
        "categories_nodes": [],
        "categories_segments": [],
        "categories_sizes": [],
        "default_left": list(missing_left),
        "id": number,
        "left_children": list(left),
        "loss_changes": [0.0] * nodes,
        "parents": [NO_PARENT if parent < 0 else parent for parent in parents],
        "right_children": list(right),
        "split_conditions": list(conditions),
        "split_indices": list(columns),
        "split_type": [0] * nodes,
        "sum_hessian": [0.0] * nodes,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(width),
            "num_nodes": str(nodes),
            "size_leaf_vector": "1",
        },
    }


def _shortest(value: np.float32) -> float:
    """As short as it can be and still the same float32."""
    return float(str(value))


def _record(number: int, tree: GrownTree, cuts: Sequence[Cells]) -> dict[str, Any]:
    """Nodes level by level; XGBoost numbers them without gaps."""
    places = _present(tree)
    node_of = {place: node for node, place in enumerate(places)}
    return tree_record(
        number,
        left=[node_of.get(2 * place + 1, -1) for place in places],
        right=[node_of.get(2 * place + 2, -1) for place in places],
        columns=[max(int(tree.column[place]), 0) for place in places],
        conditions=[_condition(tree, place, cuts) for place in places],
        missing_left=[int(tree.missing_left[place]) for place in places],
        parents=[node_of[(place - 1) // 2] if place else -1 for place in places],
        width=len(cuts),
    )


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
    """The cut below which cells go left; of a leaf its weight."""
    if tree.column[place] < 0:
        return _shortest(tree.weight[place])
    own, cut = cuts[tree.column[place]], tree.cut[place]
    return _shortest(own[cut] if cut < len(own) else np.float32(LAST_CUT))
