"""A learning algorithm is a value: a composition of parts, each of which can be exchanged for another."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar

from winnow.core import Choice, ConfigError
from winnow.learn.aggregation import AggregationRule
from winnow.learn.algorithm_part import AlgorithmPart
from winnow.learn.client_round_method import ClientUpdate, PlainUpdate
from winnow.learn.collect import Collect, PlainCollect
from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.round_loop import Schedule, SynchronousRounds
from winnow.learn.selection import Selector
from winnow.learn.server_optimiser import ReplaceModel, ServerOptimiser


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Which clients are selected, what they do, how replies are collected and aggregated, what the server makes of the
    aggregate, and when.

    All parts are settings, so an algorithm is data: it can be written to a file and compared.
    """

    select: Selector
    local: LocalOptimiser
    aggregate: AggregationRule
    client: ClientUpdate = field(default_factory=PlainUpdate)
    collect: Collect = field(default_factory=PlainCollect)
    server: ServerOptimiser = field(default_factory=ReplaceModel)
    schedule: Schedule = field(default_factory=SynchronousRounds)

    @property
    def parts(self) -> tuple[AlgorithmPart, ...]:
        return tuple(vars(self).values())

    def __post_init__(self) -> None:
        """Parts that cannot work together are rejected by name."""
        for place, part in vars(self).items():
            for other, name in part.needs.items():
                given = getattr(getattr(self, other), "name", "")
                if given != name:
                    raise ConfigError(f"{place}.name = {part.name!r} requires {other}.name = {name!r}; it is {given!r}")
            conflict = part.conflict(self)
            if conflict is not None:
                raise ConfigError(conflict)

    @property
    def needs_start_loss(self) -> bool:
        """Whether replies tell the loss, on the client's data, of the model that the client was sent."""
        return self.select.needs_start_loss or self.aggregate.needs_start_loss


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A named algorithm: the parts that make it what it is. All other settings are the experiment's.

    A part is a class, or `partial(PartialAggregation, weights="uniform")` where the algorithm also fixes settings.
    """

    name: str
    summary: str
    select: Callable[..., Selector] | None = None
    local: Callable[..., LocalOptimiser] | None = None
    client: Callable[..., ClientUpdate] | None = None
    collect: Callable[..., Collect] | None = None
    aggregate: Callable[..., AggregationRule] | None = None
    server: Callable[..., ServerOptimiser] | None = None
    schedule: Callable[..., Schedule] | None = None
    filters: tuple[Mapping[str, Any], ...] = ()
    """Filters without which it would be another algorithm, as a configuration has them."""

    known: ClassVar[dict[str, "Recipe"]] = {}

    def __post_init__(self) -> None:
        for part in fields(Algorithm):
            self._check(part.name, part.type)
        Recipe.known[self.name] = self

    def _check(self, place: str, family: Any) -> None:
        given = getattr(self, place)
        found = given.func if isinstance(given, partial) else given
        if given is not None and not (isinstance(found, type) and issubclass(found, family)):
            raise TypeError(f"recipe {self.name!r}: {place} must be a class derived from {family.__name__}")

    def table(self) -> dict[str, Any]:
        """The parts as a configuration has them, which a file is layered over."""
        given = {part.name: getattr(self, part.name) for part in fields(Algorithm)}
        parts = {place: _part_table(part) for place, part in given.items() if part is not None}
        return {**parts, "filters": list(self.filters)} if self.filters else parts


def _part_table(part: Any) -> dict[str, Any]:
    if isinstance(part, partial):
        return {**_part_table(part.func), **{key: _fixed_value(value) for key, value in part.keywords.items()}}
    return {"name": part.model_fields["name"].default}


def _fixed_value(value: Any) -> Any:
    """A part within a part fixes its name, and of its settings those that were given."""
    if not isinstance(value, Choice):
        return value
    return {**_part_table(type(value)), **value.model_dump(include=value.model_fields_set)}
