"""Rows to grow trees on, pooled and divided among owners, and XGBoost's own trees of the same bins."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as arrow
import xgboost

from winnow.analytics.permissions import PERMISSIONS
from winnow.analytics.program import run_plain
from winnow.analytics.question import Answer, QueryTerms, merge_terms, read_question
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.trees.cut_points import find_cuts
from winnow.analytics.trees.tree_columns import tree_columns

KINDS = ("a", "b", "c", "d")
DECLARATION = TableDeclaration.model_validate(
    {
        "columns": {
            "x": {"level": "protected", "type": "number", "bounds": [-4.0, 4.0]},
            "heavy": {"level": "protected", "type": "integer", "bounds": [0, 100_000]},
            "kind": {"level": "protected", "values": list(KINDS)},
            "note": {"level": "protected", "type": "text"},
            "yes": {"level": "protected", "values": ["no", "yes"]},
            "three": {"level": "protected", "values": ["low", "mid", "high"]},
            "amount": {"level": "protected", "type": "number", "bounds": [-100.0, 100.0]},
        }
    }
)


def rows_of(count: int, seed: int = 0) -> pd.DataFrame:
    """A normal column with holes, one that is mostly 0, a category, and three targets that depend on them."""
    rng = np.random.default_rng(seed)
    x = np.clip(rng.normal(size=count), -4, 4)
    heavy = np.where(rng.random(count) < 0.8, 0, rng.integers(1, 100_000, count)).astype(float)
    kind = rng.choice(KINDS, count)
    score = np.sin(2 * x) + (heavy > 30_000) - (kind == "c") + rng.normal(0, 0.5, count)
    rows = pd.DataFrame({"x": x, "heavy": heavy, "kind": kind, "note": "n"})
    rows.loc[rng.random(count) < 0.1 + 0.2 * (score > 0), "x"] = np.nan
    rows["yes"] = np.where(score > 0, "yes", "no")
    rows["three"] = np.array(["low", "mid", "high"])[np.digitize(score, [-0.5, 0.7])]
    rows["amount"] = np.clip(20 * score, -100, 100)
    return rows


def divided(rows: pd.DataFrame, owners: int, how: str = "shuffled", target: str = "yes") -> list[OwnerTable]:
    """By chance, by the target, or to owners of very different size."""
    rng, count = np.random.default_rng(1), len(rows)
    if how == "label-skewed":
        ranks = np.argsort(np.argsort(rows[target].to_numpy().astype(str), kind="stable"))
        owner = np.where(rng.random(count) < 0.9, ranks * owners // count, rng.integers(0, owners, count))
    else:
        shares = np.ones(owners) if how == "shuffled" else 2.0 ** -np.arange(owners)
        owner = rng.choice(owners, count, p=shares / shares.sum())
    return [
        OwnerTable(DECLARATION, arrow.Table.from_pandas(rows[owner == place], preserve_index=False))
        for place in range(owners)
    ]


def terms_of(owners: int, minimum: int = 1) -> dict[str, QueryTerms]:
    terms = QueryTerms(declaration=DECLARATION, allow=PERMISSIONS, minimum=minimum, owners=1)
    return {f"owner-{place}": terms for place in range(owners)}


def grown(tables: Sequence[OwnerTable], *, minimum: int = 1, **settings: Any) -> Answer:
    """The answer without any protection."""
    question = read_question({"kind": "trees", "table": "t", **settings})
    merged = merge_terms(question, terms_of(len(tables), minimum))
    return run_plain(lambda: question.program(merged), list(tables))


def trees_in(model: str | bytes | bytearray) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(model)["learner"]["gradient_booster"]["model"]["trees"]
    return found


def federated_cuts(
    tables: Sequence[OwnerTable], answer: Answer, *, bins: int = 64, minimum: int = 1
) -> list[np.ndarray]:
    """The cuts that owners find, of the columns of an answer."""
    columns, _ = tree_columns(DECLARATION, answer["target"], [column["name"] for column in answer["columns"]])
    return run_plain(lambda: find_cuts(columns, bins, minimum, masked=True), list(tables))


def in_bins(cells: np.ndarray, cuts: Sequence[np.ndarray]) -> np.ndarray:
    """The number of each cell's bin, NaN where it is missing."""
    found = [
        np.where(np.isnan(own), np.nan, np.searchsorted(edges, own, side="right"))
        for own, edges in zip(cells.T, cuts, strict=True)
    ]
    return np.stack(found, axis=1).astype(np.float32)


def same_nodes(own: dict[str, Any], other: dict[str, Any], cells: np.ndarray, binned: np.ndarray) -> tuple[int, int]:
    """How many nodes of XGBoost's tree over bins (`other`) are the same in ours, and how many it has: leaves of the
    same weight, splits of the same column that send the same rows left. (Where a node has no row in a bin, the cuts
    around it are equally good, and which one XGBoost takes is the rounding of its sums.)
    """
    same, pairs = 0, [(0, 0, np.arange(len(cells)))]
    while pairs:
        mine, theirs, rows = pairs.pop()
        leaf = other["left_children"][theirs] < 0
        if leaf or own["left_children"][mine] < 0:
            close = abs(other["split_conditions"][theirs] - own["split_conditions"][mine]) < 1e-4
            same += leaf and own["left_children"][mine] < 0 and close
            continue
        left, expected = _goes_left(own, mine, cells[rows]), _goes_left(other, theirs, binned[rows])
        if own["split_indices"][mine] == other["split_indices"][theirs] and np.array_equal(left, expected):
            same += 1
            for side, kept in (("left_children", left), ("right_children", ~left)):
                pairs.append((own[side][mine], other[side][theirs], rows[kept]))
    return same, len(other["left_children"])


def _goes_left(tree: dict[str, Any], node: int, rows: np.ndarray) -> np.ndarray:
    cells = rows[:, tree["split_indices"][node]]
    return np.where(np.isnan(cells), bool(tree["default_left"][node]), cells < tree["split_conditions"][node])


def pooled_booster(cells: np.ndarray, target: np.ndarray, rounds: int, **settings: Any) -> "xgboost.Booster":
    """XGBoost's own, every value of a cell a bin."""
    data = xgboost.QuantileDMatrix(cells, target, max_bin=1024)
    given = {"tree_method": "hist", "max_bin": 1024, "nthread": 1, **settings}
    return xgboost.train(given, data, rounds)
