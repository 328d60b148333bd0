"""SCAFFOLD (Karimireddy et al., 2020, algorithm 1): control variates correct the drift of clients whose data differ."""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from winnow.core import Payload
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.client_round_method import ClientUpdate, LocalResult, LocalTraining
from winnow.learn.selection import UniformSelector
from winnow.learn.server_optimiser import RoundAggregate, ServerOptimiser
from winnow.learn.stack import ModelState
from winnow.learn.tensor_arithmetic import combine, divided, minus, only, plus, zeros

CONTROL = "control"


class ControlVariatesUpdate(ClientUpdate):
    """Steps along ∇f_k(w) − c_k + c; then c_k⁺ = c_k − c + (x − y_k)/(τ_k·η), the paper's option II.

    Sent are the model and c_k⁺ − c_k. The rule is derived for plain SGD; with momentum, where a step is longer than η,
    the effective steps stand for their number τ_k, so that the result remains the mean gradient.
    """

    name: Literal["control-variates"] = "control-variates"
    upload_factor: ClassVar[float] = 2.0
    extra_parts: ClassVar[tuple[str, ...]] = (CONTROL,)
    needs: ClassVar[Mapping[str, str]] = {"server": "scaffold", "local": "sgd"}

    def update(self, training: LocalTraining) -> LocalResult:
        common = training.received_part(CONTROL)
        own = training.stored_part(CONTROL, zeros(common))
        trained = training.train(gradient_offset=minus(common, own))
        walked = minus(only(training.model, training.trained), only(trained.states, training.trained))
        slope = divided(walked, training.local.effective_steps(trained.steps.clamp(min=1)) * training.rate)
        change = combine(lambda s, c: s - c, slope, common)
        return LocalResult(
            model=trained.states, trained=trained, parts={CONTROL: change}, keep={CONTROL: plus(own, change)}
        )


class ScaffoldServerOptimiser(ServerOptimiser):
    """x ← x + η_g·(x̄ − x) and c ← c + |S|/N·mean(c_k⁺ − c_k); c goes out with every task."""

    name: Literal["scaffold"] = "scaffold"
    learning_rate: float = Field(1.0, gt=0)
    download_factor: ClassVar[float] = 2.0
    needs: ClassVar[Mapping[str, str]] = {"client": "control-variates"}

    def start(self, trained: ModelState) -> ModelState:
        return zeros(trained)

    def broadcast(self, state: ModelState) -> Payload:
        return {CONTROL: state}

    def step(self, state: ModelState, model: ModelState, aggregate: RoundAggregate) -> tuple[ModelState, ModelState]:
        control = plus(state, aggregate.parts[CONTROL], aggregate.clients / aggregate.population)
        now, mean = only(model, aggregate.trained_names), only(aggregate.model, aggregate.trained_names)
        return control, aggregate.model | plus(now, minus(mean, now), self.learning_rate)


scaffold = Recipe(
    name="scaffold",
    summary="control variates at the clients and the server",
    select=UniformSelector,
    client=ControlVariatesUpdate,
    aggregate=partial(PartialAggregation, weights="uniform"),
    server=ScaffoldServerOptimiser,
)
