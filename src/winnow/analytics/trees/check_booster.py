"""A booster as it came from a server, checked before XGBoost reads it: its loader trusts the numbers of nodes."""

import json
from collections.abc import Sequence
from math import isfinite
from typing import Any

import msgspec

from winnow.analytics.trees.booster_json import booster_document, tree_record
from winnow.core import RunError

MAX_TREES = 1_000_000


class _TreeRecord(msgspec.Struct, frozen=True):
    """What prediction needs of a tree; anything else is left out of the model that is loaded."""

    left_children: list[int]
    right_children: list[int]
    split_indices: list[int]
    split_conditions: list[float]
    default_left: list[int]


class _Model(msgspec.Struct, frozen=True):
    trees: list[_TreeRecord]
    iteration_indptr: list[int]
    tree_info: list[int]


class _Gradient(msgspec.Struct, frozen=True):
    model: _Model


class _Learner(msgspec.Struct, frozen=True):
    gradient_booster: _Gradient


class _Booster(msgspec.Struct, frozen=True):
    learner: _Learner


def checked_booster(text: str, names: Sequence[str], objective: str, classes: int, base_score: float) -> str:
    """The same model, composed anew of parts that were checked; RunError if they are none of a model."""
    try:
        model = msgspec.json.decode(text, type=_Booster).learner.gradient_booster.model
    except (msgspec.DecodeError, RecursionError) as error:
        raise RunError("the booster in the answer cannot be read") from error
    outputs, trees = (classes if classes > 2 else 1), model.trees
    ends = model.iteration_indptr
    if len(trees) > MAX_TREES or ends[:1] != [0] or ends[-1:] != [len(trees)] or ends != sorted(ends):
        raise RunError("the booster in the answer has rounds that do not fit its trees")
    if len(model.tree_info) != len(trees) or not all(0 <= each < outputs for each in model.tree_info):
        raise RunError("the booster in the answer has trees of classes that are none")
    if objective not in ("binary:logistic", "multi:softprob", "reg:squarederror") or not isfinite(base_score):
        raise RunError("the booster in the answer predicts in a way that is unknown here")
    records = [_checked_tree(number, tree, len(names)) for number, tree in enumerate(trees)]
    document = booster_document(
        records, ends, model.tree_info, names=names, objective=objective, classes=classes, base_score=base_score
    )
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _checked_tree(number: int, tree: _TreeRecord, columns: int) -> dict[str, Any]:
    """Children come after their parent, each node has one, and columns exist."""

    nodes = len(tree.left_children)
    others = (tree.right_children, tree.split_indices, tree.split_conditions, tree.default_left)
    parents = {0: -1}
    sound = nodes > 0 and all(len(each) == nodes for each in others)
    for node in range(nodes if sound else 0):
        left, right = tree.left_children[node], tree.right_children[node]
        if (left, right) == (-1, -1):
            continue
        sound = sound and node < left < nodes and node < right < nodes and left != right
        sound = sound and left not in parents and right not in parents
        parents[left] = parents[right] = node
    sound = sound and set(parents) == set(range(nodes))
    sound = sound and all(0 <= column < columns for column in tree.split_indices)
    sound = sound and all(isfinite(each) for each in tree.split_conditions)
    if not sound or not all(each in (0, 1) for each in tree.default_left):
        raise RunError(f"the booster in the answer has a tree (number {number}) that is none")
    return tree_record(
        number,
        left=tree.left_children,
        right=tree.right_children,
        columns=tree.split_indices,
        conditions=tree.split_conditions,
        missing_left=tree.default_left,
        parents=[parents[node] for node in range(nodes)],
        width=columns,
    )
