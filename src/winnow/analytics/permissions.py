"""What an owner may allow in its [[queries]] rules. Agents read these rules: nothing is imported here."""

from typing import Literal, TypeAlias, get_args

Permission: TypeAlias = Literal[
    "statistics", "correlation", "per-owner", "fit", "aggregate", "extremes", "nearest", "match"
]
PERMISSIONS: tuple[Permission, ...] = get_args(Permission)
