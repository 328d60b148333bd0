"""What each owner keeps of vertical trees: while they grow, and in the end as files of its own.

The owner of labels has the trees: cuts of its own columns, numbers of the other owner's columns and cuts, and weights.
The other owner has what its numbers stand for. Neither predicts alone; both parts together are an XGBoost model.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from winnow.analytics.trees.cut_points import LAST_CUT
from winnow.analytics.trees.grown_tree import GrownTree, read_tree
from winnow.analytics.trees.tree_columns import Cells
from winnow.analytics.trees.tree_record import shortest, tree_record
from winnow.core import RunError
from winnow.core.message_decoding import UnreadableError, from_json, from_msgpack
from winnow.privacy.shares.errors import SharesError

if TYPE_CHECKING:
    from winnow.analytics.trees.vertical_setup import VerticalSetup

T = TypeVar("T")
PART_FILE, PREDICTIONS_FILE = "trees.json", "predictions.csv"


class LabelState(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    base: float
    margins: bytes
    """float32, rows in common × trees of a round."""
    rounds: list[list[bytes]] = []
    """Trees in words."""
    bins: list[int] = []
    """Of the other owner's columns."""
    best_loss: int | None = None
    """Of rows held out, where boosting stops early; and the margins that it has."""
    best_margins: bytes = b""

    def margins_of(self, trees: int) -> NDArray[np.float32]:
        return np.frombuffer(self.margins, "<f4").astype(np.float32).reshape(-1, trees)

    def trees(self) -> list[list[GrownTree]]:
        return [[read_tree(np.frombuffer(words, "<i8").astype(np.int64)) for words in own] for own in self.rounds]

    def after(self, margins: NDArray[np.float32], grown: Sequence[GrownTree], bins: list[int]) -> "LabelState":
        words = [tree.words().astype("<i8", copy=False).tobytes() for tree in grown]
        return msgspec.structs.replace(self, margins=float_bytes(margins), rounds=[*self.rounds, words], bins=bins)

    def measured(self, loss: int) -> "LabelState":
        """The loss of rows held out with the present margins: the smallest is kept."""
        if self.best_loss is not None and self.best_loss <= loss:
            return self
        return msgspec.structs.replace(self, best_loss=loss, best_margins=self.margins)


class FeatureState(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    splits: list[tuple[int, int]] = []
    """Columns and cuts that trees were split at."""


def float_bytes(values: NDArray[np.float32]) -> bytes:
    return values.astype("<f4", copy=False).tobytes()


def label_state(kept: bytes) -> LabelState:
    return _state(kept, LabelState)


def feature_state(kept: bytes) -> FeatureState:
    return _state(kept, FeatureState) if kept else FeatureState()


def _state(kept: bytes, kind: type[T]) -> T:
    try:
        return from_msgpack(kept, kind)
    except UnreadableError as error:
        raise SharesError("what this owner kept of the trees cannot be read") from error


def label_files(
    setup: "VerticalSetup",
    keys: Sequence[str],
    cuts: Sequence[Cells],
    state: LabelState,
    predicted: NDArray[np.float64],
) -> dict[str, str]:
    """The trees, and a prediction for every row in common."""
    numbers = [np.arange(count, dtype=np.float32) for count in state.bins]
    rounds = state.trees()
    part = {
        "kind": "vertical trees, labels",
        "key": setup.key,
        "columns": [column.record() for column in setup.own],
        "base_score": state.base,
        "round_ends": np.cumsum([0, *(len(own) for own in rounds)]).tolist(),
        "trees": [tree_record(tree, [*cuts, *numbers], place) for own in rounds for place, tree in enumerate(own)],
    }
    return {PART_FILE: _json(part), PREDICTIONS_FILE: _predictions(setup, keys, predicted)}


def feature_files(setup: "VerticalSetup", cuts: Sequence[Cells], state: FeatureState) -> dict[str, str]:
    """What the numbers of its cuts stand for."""
    part = {
        "kind": "vertical trees, features",
        "key": setup.key,
        "columns": [column.record() for column in setup.theirs],
        "splits": [[column, cut, _value(cuts[column], cut)] for column, cut in state.splits],
    }
    return {PART_FILE: _json(part)}


def _value(cuts: Cells, cut: int) -> float:
    return shortest(cuts[cut] if cut < len(cuts) else np.float32(LAST_CUT))


def _json(part: Mapping[str, Any]) -> str:
    return json.dumps(part, ensure_ascii=False) + "\n"


def _predictions(setup: "VerticalSetup", keys: Sequence[str], predicted: NDArray[np.float64]) -> str:
    """Of two classes the probability of the second, of several that of each, else the number."""
    classes = setup.target.classes
    names = [setup.target.name] if not classes else [classes[1]] if len(classes) == 2 else list(classes)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([setup.key, *names])
    writer.writerows([key, *(f"{each:.6g}" for each in row)] for key, row in zip(keys, predicted, strict=True))
    return text.getvalue()


class _LabelPart(msgspec.Struct, frozen=True):
    columns: list[dict[str, Any]]
    base_score: float
    round_ends: list[int]
    trees: list[dict[str, list[Any] | int]]


class _FeaturePart(msgspec.Struct, frozen=True):
    columns: list[dict[str, Any]]
    splits: list[tuple[int, int, float]]


def with_parts(answer: Mapping[str, Any], files: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """The answer with its model, where it is of vertical trees and both owners' files are here."""
    owners = [str(answer.get(role)) for role in ("labels", "features")]
    if "vertical" not in answer or not all(PART_FILE in files.get(owner, {}) for owner in owners):
        return dict(answer)
    labels, features = (files[owner][PART_FILE] for owner in owners)
    return {**answer, **joined_model(labels, features)}


def joined_model(labels: str, features: str) -> dict[str, Any]:
    """What two owners' parts are together: the model of an answer, as `winnow trees` gives it over rows."""
    try:
        left, right = from_json(labels.encode(), _LabelPart), from_json(features.encode(), _FeaturePart)
        own, value_of = len(left.columns), {(column, cut): value for column, cut, value in right.splits}
        trees = [_joined_tree(tree, own, value_of) for tree in left.trees]
    except (UnreadableError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise RunError("the two parts of the trees cannot be read, or do not belong together") from error
    return {"base_score": left.base_score, "round_ends": left.round_ends, "trees": trees}


def _joined_tree(tree: Mapping[str, Any], own: int, value_of: Mapping[tuple[int, int], float]) -> dict[str, Any]:
    condition = [
        value_of[column - own, int(value)] if left >= 0 and column >= own else value
        for left, column, value in zip(tree["left"], tree["column"], tree["condition"], strict=True)
    ]
    return {**tree, "condition": condition}
