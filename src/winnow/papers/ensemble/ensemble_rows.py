"""The rows of the tables: an ensemble, and all that may be behind its gain."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from winnow.papers.ensemble.opt_in_rivals import ALONE, TUNED

LEAVES = 4
"""Clusters of every row but those of the figure."""
HIDDEN, WIDE = (32, 16), (128, 64)
"""A leaf, and a network as wide as all leaves."""


@dataclass(frozen=True, kw_only=True)
class EnsembleRow:
    """A row: clusters and what combines them; or one model of these hidden layers."""

    name: str
    title: str
    clusters: Mapping[str, Any] | None = None
    combine: str = "mean"
    hidden: tuple[int, ...] = HIDDEN
    opt_in: str | None = None
    """What is trained on the opt-in samples besides, at the server."""

    def ensemble(self, over_rate: float) -> dict[str, Any] | None:
        """The [ensemble] section."""
        if self.clusters is None:
            return None
        combine: dict[str, Any] = {"name": self.combine}
        if self.combine == "over-arch":
            optimiser = {"name": "sgd", "learning_rate": over_rate, "batch_size": 64, "weight_decay": 1e-3}
            combine |= {"rounds": 10, "hidden": (16,), "opt_in": 0.1, "local": optimiser}
        return {"clusters": dict(self.clusters), "combine": combine}


FL = EnsembleRow(name="fl", title="FL, of a leaf's size")


def _combined(key: str, title: str, clusters: Mapping[str, Any], *ways: str) -> tuple[EnsembleRow, ...]:
    return tuple(
        EnsembleRow(name=f"{key}-{way}", title=f"{title}, {way}", clusters=clusters, combine=way) for way in ways
    )


def rival_rows(public: Mapping[str, Mapping[str, Any]]) -> tuple[EnsembleRow, ...]:
    """One model, ensembles by public columns, and what tells apart capacity, bagging, clusters and opt-in labels."""
    ways = ("mean", "median", "max", "over-arch")
    by_column = [row for name, rule in public.items() for row in _combined(name, f"clusters by {name}", rule, *ways)]
    return (
        FL,
        EnsembleRow(name="fl-wide", title="FL, as wide as all leaves", hidden=WIDE),
        EnsembleRow(name="fl-tuned", title="FL, then tuned on opt-in samples", opt_in=TUNED),
        EnsembleRow(name="opt-in", title="opt-in samples alone", opt_in=ALONE),
        *by_column,
        *_combined("random", "random clusters", {"name": "random", "count": LEAVES}, "mean", "over-arch"),
        *_combined("everybody", "other seeds, everybody", {"name": "everybody", "count": LEAVES}, "mean", "over-arch"),
        *_combined("loss", "clusters by loss (as IFCA)", {"name": "loss", "count": LEAVES}, "mean"),
    )
