"""FedNova (Wang et al., 2020): clients that take more steps do not pull the model further than their data warrant.

Everything travels as sums, so any aggregation may stand between the two parts.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch

from winnow.core import Payload
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.client_round_method import ClientUpdate, LocalResult, LocalTraining
from winnow.learn.selection import UniformSelector
from winnow.learn.server_optimiser import RoundAggregate, ServerOptimiser
from winnow.learn.stack import ModelState
from winnow.learn.tensor_arithmetic import divided, minus, only, plus

EFFECTIVE_STEPS = "effective_steps"


class NormalisedUpdate(ClientUpdate):
    """Sends θ + d_k with d_k = (θ_k − θ)/‖a_k‖₁, an average step (equation 6), and what the server needs for τ_eff.

    ‖a_k‖₁ is the number of steps for plain SGD, and more with momentum (`LocalOptimiser.effective_steps`). Batch
    statistics are sent as they are.
    """

    name: Literal["normalised"] = "normalised"
    extra_parts: ClassVar[tuple[str, ...]] = (EFFECTIVE_STEPS,)
    needs: ClassVar[Mapping[str, str]] = {"server": "fednova"}

    def extra_part_shapes(self, model: ModelState) -> Payload:
        return {EFFECTIVE_STEPS: {"weighted": torch.zeros(()), "samples": torch.zeros(())}}

    def update(self, training: LocalTraining) -> LocalResult:
        trained = training.train()
        effective_steps = training.local.effective_steps(trained.steps.clamp(min=1))
        now = only(training.model, training.trained)
        step = divided(minus(only(trained.states, training.trained), now), effective_steps)
        samples = torch.as_tensor(training.data.sizes(training.clients)).to(effective_steps)
        return LocalResult(
            model=trained.states | plus(step, now),
            trained=trained,
            parts={EFFECTIVE_STEPS: {"weighted": samples * effective_steps, "samples": samples}},
        )


class FedNovaServerOptimiser(ServerOptimiser):
    """θ ← θ + τ_eff·Σ p_k·d_k with τ_eff = Σ p_k·‖a_k‖₁ and p_k = |D_k| / |D_S| (equation 7)."""

    name: Literal["fednova"] = "fednova"
    needs: ClassVar[Mapping[str, str]] = {"client": "normalised"}

    def step(self, state: ModelState, model: ModelState, aggregate: RoundAggregate) -> tuple[ModelState, ModelState]:
        effective_steps = aggregate.parts[EFFECTIVE_STEPS]
        weighted, samples = float(effective_steps["weighted"]), float(effective_steps["samples"])
        if not (weighted > 0 and samples > 0):  # in a sum that nobody looks into, one client can make it anything
            return state, model
        effective = weighted / samples
        mean, now = only(aggregate.model, aggregate.trained_names), only(model, aggregate.trained_names)
        return state, aggregate.model | plus(now, minus(mean, now), effective)


fednova = Recipe(
    name="fednova",
    summary="updates normalised by the clients' steps",
    select=UniformSelector,
    client=NormalisedUpdate,
    aggregate=PartialAggregation,
    server=FedNovaServerOptimiser,
)
