"""FedDyn (Acar et al., 2021, algorithm 1): a regulariser that changes with each client's own past aligns the clients'
optima with the common one.
"""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Algorithm, Recipe
from winnow.learn.client_round_method import ClientUpdate, LocalResult, LocalTraining
from winnow.learn.selection import UniformSelector
from winnow.learn.server_optimiser import RoundAggregate, ServerOptimiser
from winnow.learn.stack import ModelState
from winnow.learn.tensor_arithmetic import minus, only, plus, scaled, zeros

GRADIENT = "gradient"


class DynamicRegulariserUpdate(ClientUpdate):
    """min L_k(w) − ⟨g_k, w⟩ + α/2·‖w − θ‖²; then g_k ← g_k − α·(θ_k − θ), which estimates ∇L_k(θ_k)."""

    name: Literal["dynamic-regulariser"] = "dynamic-regulariser"
    alpha: float = Field(0.01, gt=0)
    needs: ClassVar[Mapping[str, str]] = {"server": "feddyn"}

    def update(self, training: LocalTraining) -> LocalResult:
        common = only(training.model, training.trained)
        own = training.stored_part(GRADIENT, zeros(common))
        trained = training.train(proximal_weight=self.alpha, gradient_offset=scaled(own, -1.0))
        walked = minus(only(trained.states, training.trained), common)
        return LocalResult(model=trained.states, trained=trained, keep={GRADIENT: plus(own, walked, -self.alpha)})


class FedDynServerOptimiser(ServerOptimiser):
    """h ← h − α·|S|/N·(mean(θ_k) − θ) and θ ← mean(θ_k) − h/α, where α is the clients'."""

    name: Literal["feddyn"] = "feddyn"
    alpha: float = Field(0.01, gt=0)
    needs: ClassVar[Mapping[str, str]] = {"client": "dynamic-regulariser"}

    def conflict(self, whole: Algorithm) -> str | None:
        client = whole.client
        if isinstance(client, DynamicRegulariserUpdate) and client.alpha != self.alpha:
            return f"client.alpha = {client.alpha} and server.alpha = {self.alpha} must be equal; set both alike"
        return None

    def start(self, trained: ModelState) -> ModelState:
        return zeros(trained)

    def step(self, state: ModelState, model: ModelState, aggregate: RoundAggregate) -> tuple[ModelState, ModelState]:
        mean, now = only(aggregate.model, aggregate.trained_names), only(model, aggregate.trained_names)
        h = plus(state, minus(mean, now), -self.alpha * aggregate.clients / aggregate.population)
        return h, aggregate.model | plus(mean, h, -1 / self.alpha)


feddyn = Recipe(
    name="feddyn",
    summary="a regulariser that follows each client's gradient",
    select=UniformSelector,
    client=DynamicRegulariserUpdate,
    aggregate=partial(PartialAggregation, weights="uniform"),
    server=FedDynServerOptimiser,
)
