"""A learning algorithm is a value: a composition of parts, each of which can be exchanged for another."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from winnow.learn.aggregate import Aggregate
from winnow.learn.collect import Collect, Plain
from winnow.learn.local import LocalUpdate
from winnow.learn.select import Selector
from winnow.learn.server import Replace, ServerStep


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Whom to invite, what they do, how replies are collected and folded, and what the server makes of the result."""

    select: Selector
    local: LocalUpdate
    aggregate: Aggregate
    collect: Collect = field(default_factory=Plain)
    server: ServerStep = field(default_factory=Replace)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A named algorithm: the parts that make it what it is. All other settings are the experiment's."""

    name: str
    summary: str
    parts: Mapping[str, Mapping[str, Any]]

    known: ClassVar[dict[str, "Recipe"]] = {}

    def __post_init__(self) -> None:
        Recipe.known[self.name] = self
