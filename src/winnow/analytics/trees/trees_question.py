"""The question of boosted trees: which column they predict, and how they are grown; and its program."""

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from winnow.analytics.permissions import Permission
from winnow.analytics.question import Answer, MergedTerms, Question
from winnow.core import ConfigError

if TYPE_CHECKING:
    from winnow.analytics.program import Program
    from winnow.analytics.tables.owner_table import OwnerTable
    from winnow.analytics.trees.binned_rows import TreeData
    from winnow.analytics.trees.boost import BoostedRounds
    from winnow.analytics.trees.growing_trees import GrowthSettings
    from winnow.analytics.trees.tree_columns import TreeColumn, TreeTarget

MAX_DEPTH = 10
MAX_ROUNDS = 5_000


class TreesQuestion(Question):
    """Trees that predict `target`, grown on `columns`: all that have bounds or values, if none are named."""

    kind: Literal["trees"] = "trees"
    target: str = Field(min_length=1)
    columns: tuple[str, ...] = ()
    positive: str | None = None
    """The value whose probability is predicted; of two that are listed, the second if it is not said."""
    rounds: int = Field(default=100, ge=1, le=MAX_ROUNDS)
    depth: int = Field(default=6, ge=1, le=MAX_DEPTH)
    learning_rate: float = Field(default=0.1, gt=0, le=1)
    bins: int = Field(default=64, ge=2, le=256)
    reg_lambda: float = Field(default=1.0, ge=0)
    reg_alpha: float = Field(default=0.0, ge=0)
    gamma: float = Field(default=0.0, ge=0)
    min_child_weight: float = Field(default=1.0, ge=0)
    minimum: int = Field(default=1, ge=1, le=1_000_000_000)
    """Rows of a child at least, where it is more than owners demand."""
    holdout: float = Field(default=0.0, ge=0, le=0.5)
    """The share of every owner's rows that trees are measured by."""
    early_stopping: int | None = Field(default=None, ge=1)
    """Stop after so many rounds without a smaller loss of rows held out, and keep the best."""
    method: Literal["histogram", "bagging", "cyclic", "forest"] = "histogram"
    """Trees of all rows, from sums; or each owner's own: averaged, in turn, or as a random forest."""
    secure: bool = True
    """Without it the server sees each owner's sums, which all must allow."""
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _consistent(self) -> "TreesQuestion":
        if self.epsilon is not None:
            raise ValueError("trees cannot be made noisy yet; statistics can (winnow stats --epsilon)")
        if self.early_stopping is not None and not self.holdout:
            raise ValueError("early_stopping needs holdout, the share of rows to measure by, such as 0.1")
        if self.early_stopping is not None and self.method != "histogram":
            raise ValueError("early_stopping is for the method histogram")
        if self.method == "forest" and "learning_rate" in self.model_fields_set:
            raise ValueError("a forest has no learning_rate: its trees are averaged")
        return self

    def needs(self) -> frozenset[Permission]:
        needed: set[Permission] = {"trees"}
        if not self.secure:
            needed.add("per-owner")
        if self.method != "histogram":
            needed.add("owner-trees")
        return frozenset(needed)

    def program(self, terms: MergedTerms) -> "Program[Answer]":
        from winnow.analytics.trees.boost import found_model  # noqa: PLC0415 - reading a question loads no tables
        from winnow.analytics.trees.tree_columns import tree_columns, tree_target  # noqa: PLC0415

        columns, left_out = tree_columns(terms.declaration, self.target, self.columns)
        target = tree_target(terms.declaration, self.target, self.positive)
        data, rows = yield from self._data(columns, target, terms.minimum)
        grown = yield from self._grown(data, self._growth(terms.minimum), len(terms.owners))
        return {
            "kind": self.kind,
            "method": self.method,
            "table": self.table,
            "target": self.target,
            "classes": list(target.classes),
            "owners": list(terms.owners),
            "minimum": max(terms.minimum, self.minimum),
            "rows": rows,
            "left_out": list(left_out),
            "columns": [column.record() for column in columns],
            "settings": self._settings(),
            **found_model(data, grown),
        }

    def _grown(self, data: "TreeData", growth: "GrowthSettings", owners: int) -> "Program[BoostedRounds]":
        from winnow.analytics.trees.boost import boost, grow_at_owners  # noqa: PLC0415
        from winnow.analytics.trees.owner_trees import OwnerTrees  # noqa: PLC0415

        if self.method == "histogram":
            return boost(data, growth, self.rounds, self.early_stopping, masked=self.secure)
        return grow_at_owners(
            OwnerTrees(method=self.method, data=data, settings=growth, owners=owners, rounds=self.rounds)
        )

    def _settings(self) -> dict[str, Any]:
        named = ("depth", "learning_rate", "bins", "reg_lambda", "reg_alpha", "gamma", "min_child_weight", "holdout")
        return {name: getattr(self, name) for name in named}

    def _growth(self, minimum: int) -> "GrowthSettings":
        from winnow.analytics.trees.growing_trees import GrowthSettings  # noqa: PLC0415
        from winnow.analytics.trees.split_gain import SplitRules  # noqa: PLC0415

        rules = SplitRules(
            reg_lambda=self.reg_lambda,
            reg_alpha=self.reg_alpha,
            gamma=self.gamma,
            min_child_weight=self.min_child_weight,
            minimum=max(minimum, self.minimum),
        )
        rate = 1.0 if self.method == "forest" else self.learning_rate
        return GrowthSettings(depth=self.depth, learning_rate=rate, rules=rules)

    def _data(
        self, columns: "tuple[TreeColumn, ...]", target: "TreeTarget", minimum: int
    ) -> "Program[tuple[TreeData, int]]":
        """What trees are grown on, and how many rows that are."""
        from winnow.analytics.program import Compare, Sum  # noqa: PLC0415
        from winnow.analytics.trees.binned_rows import TreeData, held_out  # noqa: PLC0415
        from winnow.analytics.trees.cut_points import find_cuts  # noqa: PLC0415
        from winnow.analytics.trees.tree_objectives import FRACTION_BITS, objective_for  # noqa: PLC0415

        kinds = max(len(target.classes), 1)

        def counts(table: "OwnerTable") -> Any:
            """Rows of each class to grow on, and those held out."""
            cells = target.cells(table)
            aside = held_out(self.seed, table.place, self.holdout, len(cells))
            kept = cells[~np.isnan(cells) & ~aside]
            classes = kept.astype(np.int64) if target.classes else np.zeros(len(kept), np.int64)
            return np.append(np.bincount(classes, minlength=kinds), np.count_nonzero(~np.isnan(cells) & aside))

        def mean(table: "OwnerTable") -> Any:
            cells = target.cells(table)
            kept = cells[~np.isnan(cells) & ~held_out(self.seed, table.place, self.holdout, len(cells))]
            scaled = (kept - target.low) / (target.high - target.low)
            return np.array([np.rint(scaled * (1 << FRACTION_BITS)).sum()], np.int64)

        thresholds = np.append(np.full(kinds, minimum), minimum if self.holdout else 0)
        enough = yield Compare(label="enough rows", local=counts, thresholds=thresholds)
        if not enough.all():
            short = int(np.argmin(enough))
            what = f" where {target.name} is {target.classes[short]}" if short < kinds and target.classes else ""
            held = " held out" if short == kinds else ""
            raise ConfigError(f"fewer than {minimum} rows{held}{what} in all; that is too few for trees")
        opened = yield Sum(label="rows", local=counts, length=kinds + 1)
        rows = int(opened[:-1].sum())
        base = float(opened[1]) / rows if len(target.classes) == 2 else 0.5
        if not target.classes:
            total = yield Sum(label="mean", local=mean, length=1)
            base = target.low + float(total[0]) / rows / (1 << FRACTION_BITS) * (target.high - target.low)
        cuts = yield from find_cuts(columns, self.bins, minimum, masked=self.secure)
        data = TreeData(
            columns=columns,
            target=target,
            objective=objective_for(len(target.classes), target.low, target.high),
            cuts=tuple(cuts),
            bins=self.bins,
            base=float(np.float32(base)),
            holdout=self.holdout,
            seed=self.seed,
        )
        return data, rows
