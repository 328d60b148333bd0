"""The trees of an answer in the format of XGBoost's JSON models, which its `Booster` loads.

XGBoost's loader trusts the numbers of nodes, and an answer may come from a server that lies: trees are checked first.
Gains, sums of second derivatives and weights of inner nodes, which tell of the rows behind them, are 0.
"""

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import msgspec
import numpy as np

from winnow.analytics.trees.tree_record import shortest
from winnow.core import RunError

NO_PARENT = 2147483647
FORMAT_VERSION = [3, 0, 0]
"""The oldest XGBoost whose format this is."""
LARGEST = shortest(np.finfo(np.float32).max)
OBJECTIVES = ("binary:logistic", "multi:softprob", "reg:squarederror")


class _Tree(msgspec.Struct, frozen=True):
    """As `tree_record` writes it."""

    output: int
    left: list[int]
    column: list[int]
    condition: list[float]
    missing_left: list[int]


class _Model(msgspec.Struct, frozen=True):
    """The part of an answer that is the model."""

    trees: list[_Tree]
    round_ends: list[int]
    columns: list[dict[str, Any]]
    classes: list[str]
    objective: str
    base_score: float


def booster_text(answer: Mapping[str, Any]) -> str:
    """The model of an answer; RunError if it is none."""
    try:
        model = msgspec.convert({name: answer[name] for name in _Model.__struct_fields__}, _Model)
        names = [str(column["name"]) for column in model.columns]
    except (msgspec.ValidationError, KeyError) as error:
        raise RunError("the model in the answer cannot be read") from error
    outputs = len(model.classes) if len(model.classes) > 2 else 1
    ends = model.round_ends
    if ends[:1] != [0] or ends[-1:] != [len(model.trees)] or ends != sorted(ends):
        raise RunError("the model in the answer has rounds that do not fit its trees")
    if not all(0 <= tree.output < outputs for tree in model.trees):
        raise RunError("the model in the answer has trees for classes that do not exist")
    if model.objective not in OBJECTIVES or not isfinite(model.base_score):
        raise RunError("the model in the answer predicts in a way that is unknown here")
    trees = [_xgboost_tree(number, tree, len(names)) for number, tree in enumerate(model.trees)]
    return json.dumps(_document(model, names, trees), separators=(",", ":"), ensure_ascii=False)


def _document(model: _Model, names: Sequence[str], trees: list[dict[str, Any]]) -> dict[str, Any]:
    classes = len(model.classes)
    multi = classes > 2
    about: dict[str, Any] = (
        {"softmax_multiclass_param": {"num_class": str(classes)}}
        if multi
        else {"reg_loss_param": {"scale_pos_weight": "1"}}
    )
    score = ",".join([str(shortest(np.float32(model.base_score)))] * (classes if multi else 1))
    gbtree = {
        "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": model.round_ends,
        "tree_info": [tree.output for tree in model.trees],
        "trees": trees,
    }
    learner = {
        "attributes": {},
        "feature_names": list(names),
        "feature_types": ["float"] * len(names),
        "gradient_booster": {"model": gbtree, "name": "gbtree"},
        "learner_model_param": {
            "base_score": f"[{score}]",
            "boost_from_average": "1",
            "num_class": str(classes if multi else 0),
            "num_feature": str(len(names)),
            "num_target": "1",
        },
        "objective": {"name": model.objective, **about},
    }
    return {"learner": learner, "version": FORMAT_VERSION}


def _xgboost_tree(number: int, tree: _Tree, columns: int) -> dict[str, Any]:
    nodes, parents = len(tree.left), _parents(tree, columns)
    if parents is None:
        raise RunError(f"the model in the answer has a tree (number {number}) that is none")
    return {
        "base_weights": [0.0] * nodes,
        "categories": [],
        "categories_nodes": [],
        "categories_segments": [],
        "categories_sizes": [],
        "default_left": tree.missing_left,
        "id": number,
        "left_children": tree.left,
        "loss_changes": [0.0] * nodes,
        "parents": parents,
        "right_children": [left + 1 if left >= 0 else -1 for left in tree.left],
        "split_conditions": tree.condition,
        "split_indices": tree.column,
        "split_type": [0] * nodes,
        "sum_hessian": [0.0] * nodes,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(columns),
            "num_nodes": str(nodes),
            "size_leaf_vector": "1",
        },
    }


def _parents(tree: _Tree, columns: int) -> list[int] | None:
    """Of each node; None unless children come after their parent, every node but the first has one, and columns and
    numbers are possible.
    """
    nodes = len(tree.left)
    if not nodes or any(len(each) != nodes for each in (tree.column, tree.condition, tree.missing_left)):
        return None
    if not all(0 <= column < columns for column in tree.column) or not {*tree.missing_left} <= {0, 1}:
        return None
    if not all(abs(each) <= LARGEST for each in tree.condition):
        return None
    parents = [NO_PARENT] * nodes
    for node, left in enumerate(tree.left):
        if left == -1:
            continue
        if not node < left < nodes - 1 or parents[left] != NO_PARENT or parents[left + 1] != NO_PARENT:
            return None
        parents[left] = parents[left + 1] = node
    return parents if NO_PARENT not in parents[1:] else None
