"""SRPFL (Tziotis et al., 2022): learn from the fastest few first, and double their number stage by stage.

It is a way of taking part, so it goes around any selection and any method: around FedRep it is SRPFL, around LG-FedAvg
LG-SRPFL, around plain averaging FLANP (Reisizadeh et al., 2022), and with FedProf's selection inside it takes clients
that are quick and good.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializerFunctionWrapHandler, field_serializer, model_validator
from torch import Tensor, nn

from winnow.core import Population, Reply, Until
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Algorithm, Recipe
from winnow.learn.algorithm_part import DataSummary
from winnow.learn.algorithms.fedper import AlternatingUpdate, SplitUpdate
from winnow.learn.algorithms.fedprof import ProfileSelector
from winnow.learn.client_round_method import PlainUpdate
from winnow.learn.profile_by_class import ProfileClasses
from winnow.learn.profile_comparison import ProfileComparison
from winnow.learn.selection import SelectedClients, Selection, SelectionContext, Selector, UniformSelector

FIRST_STAGE_DIVISOR = 10
"""Unless told otherwise one in so many of the sample takes part in the first stage: 10 of 100 in the authors' code."""

AMOUNT = ("fraction", "count", "replacement")
"""How many are sampled is said once, for the whole."""

BY_PROFILE = ProfileSelector.model_construct()
"""Without an amount, which the selection around it has."""

HELD_PREFIX, SAMPLE = "held/", "sample/"


class DoublingSelector(Selector):
    """In stage r, N clients are selected and the first n_r = min(N, 2^r·n₀) replies end the round (algorithm 1).

    Nobody's speed needs to be known: who answers first is fast (remark 3.2). N is `fraction` or `count`; `sample` says
    how the N are drawn, uniformly unless given; `first_stage_clients` is n₀, a tenth of N unless given. New clients
    are drawn in each round (algorithm 2) or for each stage (section 3); remark 3.1 has both.

    A stage lasts `rounds_per_stage` rounds. With `stage_target` it ends earlier, as soon as the mean training loss of a
    round's replies is at most stage_target·n₀/n_r: the more samples, the more accurately they are worth being fitted
    (FLANP's criterion, with the loss in the place of a gradient's norm).
    """

    name: Literal["doubling"] = "doubling"
    sample: Selector | None = None
    first_stage_clients: int | None = Field(None, ge=1)
    rounds_per_stage: int = Field(10, ge=1)
    stage_target: float | None = Field(None, gt=0)
    resample_every: Literal["round", "stage"] = "round"
    needs: ClassVar[Mapping[str, str]] = {"schedule": "rounds"}

    @model_validator(mode="before")
    @classmethod
    def _as_many(cls, table: Any) -> Any:
        """The sample is as large as the whole says."""
        sample = table.get("sample") if isinstance(table, Mapping) else None
        if isinstance(sample, str):
            sample = {"name": sample}
        if not isinstance(sample, Mapping):
            return table
        amount = {key: table[key] for key in AMOUNT if table.get(key) is not None}
        if "fraction" in amount and "count" in amount:  # said of the whole: the sample must not have them
            raise ValueError("set fraction or count, not both")
        return {**table, "sample": {**amount, **sample}}

    @model_validator(mode="after")
    def _alike(self) -> Self:
        if isinstance(self.sample, DoublingSelector):
            raise ValueError("sample: 'doubling' cannot contain itself; choose another selection")
        if any(getattr(self.sample, key) != getattr(self, key) for key in AMOUNT if self.sample is not None):
            raise ValueError(f"sample: leave out {', '.join(AMOUNT)}, which are set in select")
        return self

    @field_serializer("sample", mode="wrap")
    def _without_amount(self, sample: Selector | None, write: SerializerFunctionWrapHandler) -> Any:
        return None if sample is None else {key: v for key, v in write(sample).items() if key not in AMOUNT}

    @property
    def sampler(self) -> Selector:
        """How the N are drawn."""
        if self.sample is not None:
            return self.sample
        return UniformSelector(fraction=self.fraction, count=self.count, replacement=self.replacement)

    def conflict(self, whole: Algorithm) -> str | None:
        return self.sampler.conflict(whole)

    def check_data(self, data: DataSummary) -> None:
        self.sampler.check_data(data)

    def for_clients(self, names: Sequence[str]) -> Selector:
        return self if self.sample is None else self.model_copy(update={"sample": self.sample.for_clients(names)})

    def layer_for(self, module: nn.Module, x: Tensor) -> str | None:
        return self.sampler.layer_for(module, x)

    def profile_classes(self, classes: int | None, y: NDArray[Any], *, sequences: bool) -> ProfileClasses | None:
        return self.sampler.profile_classes(classes, y, sequences=sequences)

    def accepts_classes(self, asked: ProfileClasses | None, labels: int | None) -> bool:
        return self.sampler.accepts_classes(asked, labels)

    @property
    def comparison(self) -> ProfileComparison:
        return self.sampler.comparison

    @property
    def needs_start_loss(self) -> bool:
        return self.sampler.needs_start_loss

    @property
    def requests_losses(self) -> bool:
        return self.sampler.requests_losses

    def initial_replies(self, clients: int) -> int:
        most = self.cohort_size(clients)
        return min(most, self.first_stage_clients or max(1, round(most / FIRST_STAGE_DIVISOR)))

    def start(self, population: Population) -> Selection:
        return _DoublingSelection(self, population)


class _DoublingSelection(Selection):
    def __init__(self, settings: DoublingSelector, population: Population) -> None:
        self._settings = settings
        self._sample = settings.sampler.start(population)
        self._first = settings.initial_replies(len(population))
        self._most = settings.cohort_size(len(population))
        self._stage = self._rounds = 0
        self._held: SelectedClients | None = None

    @property
    def _awaited(self) -> int:
        """n_r"""
        return min(self._most, self._first << self._stage)

    def propose(self, context: SelectionContext) -> SelectedClients:
        sampled = self._held or self._sample.propose(context)
        if self._settings.resample_every == "stage":
            self._held = SelectedClients(clients=sampled.clients, counts=sampled.counts)
        replies = min(self._awaited, len(sampled.clients), sampled.until.replies or self._most)
        return SelectedClients(
            clients=sampled.clients,
            counts=sampled.counts,
            until=Until(replies=replies, seconds=sampled.until.seconds),
            scores=sampled.scores,
        )

    def observe(self, context: SelectionContext, replies: Sequence[Reply]) -> None:
        self._sample.observe(context, replies)
        self._rounds += 1
        if self._rounds >= self._settings.rounds_per_stage or self._target_met(replies):
            self._rounds, self._held = 0, None
            self._stage += self._awaited < self._most

    def _target_met(self, replies: Sequence[Reply]) -> bool:
        target = self._settings.stage_target
        losses = [reply.metrics.get("loss", np.nan) for reply in replies]
        return target is not None and bool(losses) and float(np.mean(losses)) <= target * self._first / self._awaited

    def state(self) -> Mapping[str, Any]:
        held = self._held
        kept = {} if held is None else {f"{HELD_PREFIX}clients": held.clients, f"{HELD_PREFIX}counts": held.counts}
        inner = {f"{SAMPLE}{name}": array for name, array in self._sample.state().items()}
        return {"stage": np.array([self._stage, self._rounds]), **kept, **inner}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._stage, self._rounds = (int(number) for number in state["stage"])
        if f"{HELD_PREFIX}clients" in state:
            clients, counts = (np.array(state[f"{HELD_PREFIX}{name}"], np.int64) for name in ("clients", "counts"))
            self._held = SelectedClients(clients=clients, counts=counts)
        inner = {name.removeprefix(SAMPLE): array for name, array in state.items() if name.startswith(SAMPLE)}
        self._sample.restore(inner)


srpfl = Recipe(
    name="srpfl",
    summary="FedRep, the fastest clients first, then twice as many",
    select=DoublingSelector,
    client=AlternatingUpdate,
    aggregate=PartialAggregation,
)

lg_srpfl = Recipe(
    name="lg-srpfl",
    summary="LG-FedAvg, fastest clients first, then twice as many",
    select=DoublingSelector,
    client=partial(SplitUpdate, private="body"),
    aggregate=PartialAggregation,
)

flanp = Recipe(
    name="flanp",
    summary="FedAvg, the fastest clients first, then twice as many",
    select=DoublingSelector,
    client=PlainUpdate,
    aggregate=PartialAggregation,
)

srpfl_fedprof = Recipe(
    name="srpfl-fedprof",
    summary="SRPFL, the fastest of clients drawn by profile first",
    select=partial(DoublingSelector, sample=BY_PROFILE),
    client=AlternatingUpdate,
    aggregate=PartialAggregation,
)

flanp_fedprof = Recipe(
    name="flanp-fedprof",
    summary="FLANP, the fastest of clients drawn by profile first",
    select=partial(DoublingSelector, sample=BY_PROFILE),
    client=PlainUpdate,
    aggregate=PartialAggregation,
)
