"""What an owner may allow in its [[queries]] rules. Agents read these rules: nothing is imported here."""

from collections.abc import Collection
from typing import Literal, TypeAlias, get_args

Permission: TypeAlias = Literal[
    "statistics",
    "correlation",
    "per-owner",
    "fit",
    "aggregate",
    "extremes",
    "nearest",
    "match",
    "truth",
    "trees",
    "owner-trees",
    "vertical-trees",
]
Reveal: TypeAlias = Literal["intersection", "size"]
"""What is told where identifiers are matched: which are in common, or how many."""
PERMISSIONS: tuple[Permission, ...] = get_args(Permission)
UNLESS_NAMED: tuple[Permission, ...] = ("per-owner", "extremes", "trees", "owner-trees", "vertical-trees")
"""What a rule allows only where it says so: an owner's own numbers or trees, sums over too few rows, what tells of
single rows.
"""
NO_ROWS_HINT = "ask for COUNT, SUM, AVG and the like"


def noise_hint(needs: Collection[str]) -> str:
    """What to do where an owner demands noise."""
    without = {"fit", "match", "truth", "trees", "vertical-trees"}.intersection(needs)
    return "only statistics and statements in SQL can have it" if without else "add --epsilon"
