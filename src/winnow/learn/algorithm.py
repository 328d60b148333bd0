"""A learning algorithm is a value: a composition of parts, each of which can be exchanged for another."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from winnow.core import ConfigError
from winnow.learn.aggregation import AggregationRule
from winnow.learn.client_update import ClientUpdate, PlainUpdate
from winnow.learn.collect import Collect, PlainCollect
from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.schedule import Schedule, SynchronousRounds
from winnow.learn.selection import Selector
from winnow.learn.server_optimiser import ReplaceModel, ServerOptimiser


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Whom to invite, what they do, how replies are collected and folded, what the server makes of it, and when.

    All parts are settings, so an algorithm is data: it can be written to a file and compared.
    """

    select: Selector
    local: LocalOptimiser
    aggregate: AggregationRule
    client: ClientUpdate = field(default_factory=PlainUpdate)
    collect: Collect = field(default_factory=PlainCollect)
    server: ServerOptimiser = field(default_factory=ReplaceModel)
    pace: Schedule = field(default_factory=SynchronousRounds)

    def __post_init__(self) -> None:
        """Parts that cannot work together are refused by name."""
        for place, part in vars(self).items():
            for other, name in part.needs.items():
                given = getattr(getattr(self, other), "name", "")
                if given != name:
                    raise ConfigError(f"{place}.name = {part.name!r} needs {other}.name = {name!r}, not {given!r}")
            objection = part.objection(self)
            if objection is not None:
                raise ConfigError(objection)

    @property
    def values_model(self) -> bool:
        """Whether replies tell the loss, on the client's data, of the model that the client was sent."""
        return self.select.values_model or self.aggregate.values_model


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A named algorithm: the parts that make it what it is. All other settings are the experiment's."""

    name: str
    summary: str
    parts: Mapping[str, Mapping[str, Any]]

    known: ClassVar[dict[str, "Recipe"]] = {}

    def __post_init__(self) -> None:
        Recipe.known[self.name] = self
