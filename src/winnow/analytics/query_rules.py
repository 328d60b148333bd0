"""`[[queries]]`: who may ask what of which tables. The same keys stand in a site's policy and in a federation file."""

from typing import Annotated

from pydantic import Field

from winnow.analytics.permissions import PERMISSIONS, UNLESS_NAMED, Permission, Reveal
from winnow.core import Settings

ANY = "*"
Names = tuple[Annotated[str, Field(min_length=1, max_length=200)], ...]


class NoiseBudget(Settings):
    """What a person may spend on a table in all: (ε, δ)."""

    epsilon: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-6


class QueryRule(Settings):
    """One rule must allow all of a question. Tables that are left out, or "*", are all of them."""

    people: Names = ()
    organisations: Names = ()
    roles: Names = ()
    tables: Names = ()
    allow: tuple[Permission, ...] = tuple(each for each in PERMISSIONS if each not in UNLESS_NAMED)
    minimum: Annotated[int, Field(ge=1, le=1_000_000_000)] = 10
    """No number is shown about fewer rows."""
    rows: Annotated[int, Field(ge=0)] = 0
    """How many rows may be shown as they are."""
    owners: Annotated[int, Field(ge=1)] = 2
    """The least number of owners that take part."""
    reveal: Reveal = "intersection"
    """What is told where identifiers are matched: which are in common, or only how many."""
    noise: NoiseBudget | None = None
    """Without it no noise is demanded."""


SIMULATION_RULE = QueryRule(allow=tuple(each for each in PERMISSIONS if each not in ("per-owner", "extremes")))
"""What a simulation without rules allows: trees can be tried at once, and what is one owner's or one row's needs a
rule as it does at a site.
"""
