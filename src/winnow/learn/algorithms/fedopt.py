"""FedOpt (Reddi et al., 2021): the mean of the clients' changes is a gradient for an optimiser at the server.

FedAdagrad, FedAdam and FedYogi are its algorithm 2; FedAvgM (Hsu et al., 2019) takes momentum alone. In all of them
Δ_t = mean(θ_k) − θ_t over what is trained; batch statistics are averaged.

This FedAdam is not that of Leroy et al. (2019), whom the FedProf paper cites for the name: theirs is Adam as it is,
with bias-corrected moments, v₀ = 0 and ε = 1e-8. Algorithm 2 corrects no moment for its bias and has v₀ = τ².
"""

from abc import abstractmethod
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.selection import UniformSelector
from winnow.learn.server_optimiser import RoundAggregate, ServerOptimiser
from winnow.learn.stack import ModelState
from winnow.learn.tensor_arithmetic import combine, minus, only, plus, zeros

FIRST, SECOND = "first/", "second/"
"""The moments' names in the state begin with these."""


class ServerMomentum(ServerOptimiser):
    """m ← β·m + Δ and θ ← θ + η·m (FedAvgM, which has η = 1)."""

    name: Literal["momentum"] = "momentum"
    learning_rate: float = Field(1.0, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)

    def start(self, trained: ModelState) -> ModelState:
        return zeros(trained)

    def step(self, state: ModelState, model: ModelState, aggregate: RoundAggregate) -> tuple[ModelState, ModelState]:
        velocity = plus(_mean_update(model, aggregate), state, self.momentum)
        return velocity, aggregate.model | plus(only(model, aggregate.trained_names), velocity, self.learning_rate)


class AdaptiveServerOptimiser(ServerOptimiser):
    """m ← β₁·m + (1 − β₁)·Δ and θ ← θ + η·m/(√v + τ), where v starts at τ² and is what the members differ in."""

    learning_rate: float = Field(0.01, gt=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    tau: float = Field(1e-3, gt=0)

    @abstractmethod
    def second(self, v: Tensor, squared: Tensor) -> Tensor:
        """v after a round, given Δ²."""

    def start(self, trained: ModelState) -> ModelState:
        second = combine(lambda t: torch.full_like(t, self.tau**2), trained)
        return _named(FIRST, zeros(trained)) | _named(SECOND, second)

    def step(self, state: ModelState, model: ModelState, aggregate: RoundAggregate) -> tuple[ModelState, ModelState]:
        delta = _mean_update(model, aggregate)
        m = combine(lambda m, d: self.beta1 * m + (1 - self.beta1) * d, _under(FIRST, state), delta)
        v = combine(lambda v, d: self.second(v, d * d), _under(SECOND, state), delta)
        step = combine(lambda m, v: m / (v.sqrt() + self.tau), m, v)
        moved = plus(only(model, aggregate.trained_names), step, self.learning_rate)
        return _named(FIRST, m) | _named(SECOND, v), aggregate.model | moved


class ServerAdagrad(AdaptiveServerOptimiser):
    """v ← v + Δ². As in the paper's experiments there is no momentum unless asked for."""

    name: Literal["adagrad"] = "adagrad"
    learning_rate: float = Field(0.1, gt=0)
    beta1: float = Field(0.0, ge=0, lt=1)

    def second(self, v: Tensor, squared: Tensor) -> Tensor:
        return v + squared


class ServerAdam(AdaptiveServerOptimiser):
    """v ← β₂·v + (1 − β₂)·Δ²."""

    name: Literal["adam"] = "adam"
    beta2: float = Field(0.99, ge=0, lt=1)

    def second(self, v: Tensor, squared: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * squared


class ServerYogi(AdaptiveServerOptimiser):
    """v ← v − (1 − β₂)·Δ²·sign(v − Δ²)."""

    name: Literal["yogi"] = "yogi"
    beta2: float = Field(0.99, ge=0, lt=1)

    def second(self, v: Tensor, squared: Tensor) -> Tensor:
        return v - (1 - self.beta2) * squared * (v - squared).sign()


def _mean_update(model: ModelState, aggregate: RoundAggregate) -> ModelState:
    """Δ: how far the aggregate lies from the model, in what is trained."""
    return minus(only(aggregate.model, aggregate.trained_names), only(model, aggregate.trained_names))


def _named(prefix: str, tensors: ModelState) -> ModelState:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _under(prefix: str, state: ModelState) -> ModelState:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


fedavgm = Recipe(
    name="fedavgm",
    summary="partial aggregation, momentum at the server",
    select=UniformSelector,
    aggregate=PartialAggregation,
    server=ServerMomentum,
)

fedadagrad = Recipe(
    name="fedadagrad",
    summary="partial aggregation, Adagrad at the server",
    select=UniformSelector,
    aggregate=PartialAggregation,
    server=ServerAdagrad,
)

fedadam = Recipe(
    name="fedadam",
    summary="partial aggregation, Adam at the server",
    select=UniformSelector,
    aggregate=PartialAggregation,
    server=ServerAdam,
)

fedyogi = Recipe(
    name="fedyogi",
    summary="partial aggregation, Yogi at the server",
    select=UniformSelector,
    aggregate=PartialAggregation,
    server=ServerYogi,
)
