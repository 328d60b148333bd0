"""Boosting: round after round of trees, until there are enough or rows held out are no longer predicted better."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Program, Sum, SumChain
from winnow.analytics.trees.binned_rows import BinnedRows, TreeData, binned_rows
from winnow.analytics.trees.grow_trees import LOSS_WORDS, grow_round
from winnow.analytics.trees.growing_trees import GrowthSettings
from winnow.analytics.trees.grown_tree import GrownTree, read_tree, tree_words
from winnow.analytics.trees.owner_trees import OwnerTrees
from winnow.analytics.trees.tree_objectives import LOSS_BITS, TreeObjective
from winnow.analytics.trees.tree_record import tree_record

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable
    from winnow.privacy.shares.masked_sum import VectorProgram

Rounds = list[list[GrownTree]]


@dataclass(frozen=True, kw_only=True)
class BoostedRounds:
    """The trees of each round, and the losses before the first and after each."""

    rounds: Rounds
    curve: list[dict[str, Any]]
    best: int
    """How many rounds the model has."""


class OwnersRows:
    """Binned rows of each owner that this process computes for, with the margins of the trees so far."""

    def __init__(self, data: TreeData) -> None:
        self._data, self._rows = data, dict[int, BinnedRows]()

    def after(self, rounds: Sequence[Sequence[GrownTree]], table: "OwnerTable") -> BinnedRows:
        if table.place not in self._rows:
            self._rows[table.place] = binned_rows(self._data, table)
        self._rows[table.place].follow(rounds)
        return self._rows[table.place]


def boost(
    data: TreeData, settings: GrowthSettings, rounds: int, patience: int | None, *, masked: bool
) -> Program[BoostedRounds]:
    owners, grown, curve = OwnersRows(data), Rounds(), list[dict[str, Any]]()
    while len(grown) < rounds and not stalled(curve, patience):
        opened = yield _round_step(data, settings, owners, list(grown), masked=masked)
        curve.append(losses_of(data.objective, opened[:LOSS_WORDS]))
        words = opened[LOSS_WORDS:].reshape(data.objective.trees, -1)
        grown.append([read_tree(own) for own in words])
    last = yield Sum(label="losses", local=lambda table: owners.after(grown, table).losses(), length=LOSS_WORDS)
    curve.append(losses_of(data.objective, last.astype(np.int64)))
    return BoostedRounds(rounds=grown, curve=curve, best=len(grown) if patience is None else best_round(curve))


def grow_at_owners(trees: OwnerTrees) -> Program[BoostedRounds]:
    """Rounds of owners' own trees. Those of a forest all begin at the mean, and only its end is measured."""
    data, forest = trees.data, trees.method == "forest"
    owners, grown, curve = OwnersRows(data), Rounds(), list[dict[str, Any]]()
    while len(grown) < trees.rounds:
        before = [] if forest else list(grown)
        opened = yield trees.step(len(grown), partial(owners.after, before))
        curve.append({"train": None, "holdout": None} if forest else losses_of(data.objective, opened[:LOSS_WORDS]))
        grown.append(trees.trees(opened))
    last = yield Sum(label="losses", local=lambda table: owners.after(grown, table).losses(), length=LOSS_WORDS)
    curve.append(losses_of(data.objective, last.astype(np.int64)))
    return BoostedRounds(rounds=grown, curve=curve, best=len(grown))


def _round_step(
    data: TreeData, settings: GrowthSettings, owners: OwnersRows, before: Rounds, *, masked: bool
) -> SumChain:
    def vectors(table: "OwnerTable | None") -> "VectorProgram":
        return grow_round(data, settings, None if table is None else owners.after(before, table))

    trees, numbers = data.objective.trees, 2 if data.objective.counts_hessian else 3
    nodes = 1 + sum(2**level // 2 for level in range(1, settings.depth))
    return SumChain(
        label="a tree" if trees == 1 else f"{trees} trees",
        vectors=vectors,
        length=LOSS_WORDS + trees * tree_words(settings.depth),
        sums=settings.depth,
        words=LOSS_WORDS + trees * numbers * (1 + nodes * data.most_bins),
        shows=(
            "sums of gradients and counts of rows in every bin of each node that is split, and so of its children, "
            f"which have {settings.rules.minimum} rows or more; also of bins with fewer"
        ),
        masked=masked,
    )


def losses_of(objective: TreeObjective, opened: NDArray[np.int64]) -> dict[str, Any]:
    """Of the rows that trees are grown on, and of those held out."""
    found: dict[str, Any] = {}
    for name, (total, rows) in zip(("train", "holdout"), opened.reshape(2, 2).tolist(), strict=True):
        found[name] = objective.metric_value(total / (1 << LOSS_BITS), rows) if rows else None
    return found


def stalled(curve: list[dict[str, Any]], patience: int | None) -> bool:
    return patience is not None and len(curve) > patience and best_round(curve) < len(curve) - patience


def best_round(curve: list[dict[str, Any]]) -> int:
    """The round with the smallest loss of rows held out; the last where there are none."""
    losses = [each["holdout"] for each in curve]
    return len(losses) - 1 if None in losses else int(np.argmin(losses))


def found_model(data: TreeData, grown: BoostedRounds) -> dict[str, Any]:
    """What an answer says of the model, and the model."""
    kept = grown.rounds[: grown.best]
    return {
        "objective": data.objective.name,
        "metric": data.objective.metric,
        "rounds": grown.best,
        "grown": len(grown.rounds),
        "curve": grown.curve,
        "importance": _importance(data, kept),
        "base_score": data.base,
        "round_ends": np.cumsum([0, *(len(own) for own in kept)]).tolist(),
        "trees": [
            tree_record(tree, data.cuts, place % data.objective.trees) for own in kept for place, tree in enumerate(own)
        ],
    }


def _importance(data: TreeData, rounds: Rounds) -> dict[str, float]:
    gains = np.zeros(len(data.columns))
    for tree in (tree for own in rounds for tree in own):
        gains += column_gains(tree, len(gains))
    return gain_shares([column.name for column in data.columns], gains)


def column_gains(tree: GrownTree, columns: int) -> NDArray[np.float64]:
    """What splits of each column gained."""
    gains, inner = np.zeros(columns), tree.column >= 0
    np.add.at(gains, tree.column[inner], tree.gain[inner].astype(np.float64))
    return gains


def gain_shares(names: Sequence[str], gains: NDArray[np.float64]) -> dict[str, float]:
    """The share of all gains that splits of each column make, the largest first."""
    shares = gains / gains.sum() if gains.any() else gains
    order = np.argsort(-shares, kind="stable")
    return {names[place]: float(shares[place]) for place in order}
