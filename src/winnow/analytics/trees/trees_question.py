"""The question of boosted trees: which column they predict, and how they are grown; and its program."""

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from winnow.analytics.permissions import Permission
from winnow.analytics.question import Answer, MergedTerms, Question

if TYPE_CHECKING:
    from winnow.analytics.program import Program
    from winnow.analytics.tables.owner_table import OwnerTable
    from winnow.analytics.trees.binned_rows import TreeData
    from winnow.analytics.trees.boost import BoostedRounds
    from winnow.analytics.trees.growing_trees import GrowthSettings
    from winnow.analytics.trees.tree_columns import TreeColumn, TreeTarget

MAX_DEPTH = 10
MAX_ROUNDS = 5_000
LEARNING_RATE = 0.1
OVERLAP = 1_000


class TreesQuestion(Question):
    """Trees that predict `target`, grown on `columns`: all that have bounds or values, if none are named."""

    kind: Literal["trees"] = "trees"
    target: str = Field(min_length=1)
    columns: tuple[str, ...] = ()
    positive: str | None = None
    """The value whose probability is predicted; of two that are listed, the second if it is not said."""
    rounds: int = Field(default=100, ge=1, le=MAX_ROUNDS)
    depth: int = Field(default=6, ge=1, le=MAX_DEPTH)
    learning_rate: float = Field(default=LEARNING_RATE, gt=0, le=1)
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
    vertical: str | None = Field(default=None, min_length=1)
    """Another owner's table, with further columns of the same rows; these are matched by `key`."""
    key: str | None = Field(default=None, min_length=1)
    overlap: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Rows that both owners have at least, where columns of two are joined; 1,000 if it is not said."""
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
        if (self.vertical is None) != (self.key is None):
            raise ValueError("vertical, the other owner's table, and key, the column to match rows by, go together")
        if self.vertical is None and self.overlap is not None:
            raise ValueError("overlap is for vertical trees")
        if self.vertical is not None and (self.method != "histogram" or not self.secure):
            raise ValueError("vertical trees have one method, histogram, and nothing in them is plain")
        if self.vertical == self.table:
            raise ValueError("vertical is another owner's table, under a name of its own")
        if self.method == "forest" and self.learning_rate != LEARNING_RATE:
            raise ValueError("a forest has no learning_rate: its trees are averaged")
        return self

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.table,) if self.vertical is None else (self.table, self.vertical)

    def needs(self) -> frozenset[Permission]:
        if self.vertical is not None:
            return frozenset({"match", "vertical-trees"})
        needed: set[Permission] = {"trees"}
        if not self.secure:
            needed.add("per-owner")
        if self.method != "histogram":
            needed.add("owner-trees")
        return frozenset(needed)

    def program(self, terms: MergedTerms) -> "Program[Answer]":
        from winnow.analytics.trees.boost import found_model  # noqa: PLC0415 - reading a question loads no tables
        from winnow.analytics.trees.tree_columns import tree_columns, tree_target  # noqa: PLC0415

        if self.vertical is not None:
            from winnow.analytics.trees.vertical_program import vertical_trees  # noqa: PLC0415

            told = yield from vertical_trees(self, terms)
            return {**self._about(terms), **told, "vertical": self.vertical}
        columns, left_out = tree_columns(terms.declaration, self.target, self.columns)
        target = tree_target(terms.declaration, self.target, self.positive)
        data, rows = yield from self._data(columns, target, terms.minimum)
        grown = yield from self._grown(data, self.growth(terms.minimum), len(terms.owners))
        return {
            **self._about(terms),
            "classes": list(target.classes),
            "rows": rows,
            "left_out": list(left_out),
            "columns": [column.record() for column in columns],
            **found_model(data, grown),
        }

    def _about(self, terms: MergedTerms) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "method": self.method,
            "table": self.table,
            "target": self.target,
            "owners": list(terms.owners),
            "minimum": max(terms.minimum, self.minimum),
            "settings": self._settings(),
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

    def growth(self, minimum: int) -> "GrowthSettings":
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
        from winnow.analytics.trees.base_score import (  # noqa: PLC0415
            class_counts,
            refuse_few,
            scaled_total,
            start_value,
        )
        from winnow.analytics.trees.binned_rows import TreeData, held_out  # noqa: PLC0415
        from winnow.analytics.trees.cut_points import find_cuts  # noqa: PLC0415
        from winnow.analytics.trees.tree_objectives import objective_for  # noqa: PLC0415

        def rows_of(table: "OwnerTable") -> Any:
            """The target's cells, and which rows are held out."""
            cells = target.cells(table)
            return cells, held_out(self.seed, table.place, self.holdout, len(cells))

        def counts(table: "OwnerTable") -> Any:
            return class_counts(target, *rows_of(table))

        def mean(table: "OwnerTable") -> Any:
            return np.array([scaled_total(target, *rows_of(table))], np.int64)

        kinds = max(len(target.classes), 1)
        thresholds = np.append(np.full(kinds, minimum), minimum if self.holdout else 0)
        enough = yield Compare(label="enough rows", local=counts, thresholds=thresholds)
        refuse_few(target, enough.tolist(), minimum)
        opened = yield Sum(label="rows", local=counts, length=kinds + 1)
        total = 0
        if not target.classes:
            (total,) = yield Sum(label="mean", local=mean, length=1)
        cuts = yield from find_cuts(columns, self.bins, minimum, masked=self.secure)
        data = TreeData(
            columns=columns,
            target=target,
            objective=objective_for(len(target.classes), target.low, target.high),
            cuts=tuple(cuts),
            bins=self.bins,
            base=start_value(target, opened.tolist(), total),
            holdout=self.holdout,
            seed=self.seed,
        )
        return data, int(opened[:-1].sum())
