"""Accelerated local steps: the generalised acceleration of FedAC and FedAQ (algorithm 7 of the FedAQ paper)."""

from dataclasses import dataclass
from math import sqrt
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from winnow.learn.local_optimiser import LocalOptimiser, Number, Tensors

MAX_GAMMA_MU = {"I": 1.0, "II": 0.75}
"""The largest γ·μ that a set of conditions allows: beyond it α would be smaller than one."""


@dataclass(frozen=True, kw_only=True)
class Coupling:
    """How the three sequences are coupled (α, β), and the step of the main one (γ)."""

    alpha: float
    beta: float
    gamma: float


class AcceleratedSgd(LocalOptimiser):
    """Stochastic gradient steps of three coupled sequences:

        md ← w/β + (1 − 1/β)·ag;  g ← ∇f(md);  ag ← md − η·g;  w ← (1 − 1/α)·w + md/α − γ·g

    The gradient is taken at md, which is what the parameters hold between steps; w and ag are the optimiser's own. A
    training gives ag, which is what the theorems bound. Alone it begins every round with w = ag; the algorithms `fedac`
    and `fedaq` carry w from round to round.

    Given μ, (α, β, γ) follow from a set of conditions, (43) or (44). `decay` shrinks η and γ alike.
    """

    name: Literal["accelerated"] = "accelerated"
    conditions: Literal["I", "II"] = "I"
    mu: float = Field(0.1, gt=0)
    """The paper's μ. It tunes the step γ: the true μ of a loss with a small penalty would make γ larger than 1/L."""
    tau: int = Field(20, ge=1)
    """The τ of the conditions where `epochs` leave the number of steps to each client's samples."""
    alpha: float | None = Field(None, ge=1)
    beta: float | None = Field(None, ge=1)
    gamma: float | None = Field(None, gt=0)
    weight_decay: float = Field(0.0, ge=0)

    @model_validator(mode="after")
    def _coupling_is_possible(self) -> Self:
        given = [value is not None for value in (self.alpha, self.beta, self.gamma)]
        if any(given) and not all(given):
            raise ValueError("set alpha, beta and gamma together, or none of them and mu")
        product, most = self._gamma_of_conditions * self.mu, MAX_GAMMA_MU[self.conditions]
        if not any(given) and product > most:
            raise ValueError(
                f"conditions {self.conditions} need γ·μ ≤ {most:g}, and it is {product:.3g}; lower mu or learning_rate"
            )
        return self

    @property
    def coupling(self) -> Coupling:
        """(α, β, γ) as given, or by condition set I (43) or II (44)."""
        if self.alpha is not None and self.beta is not None and self.gamma is not None:
            return Coupling(alpha=self.alpha, beta=self.beta, gamma=self.gamma)
        gamma = self._gamma_of_conditions
        if self.conditions == "I":
            alpha = 1 / (gamma * self.mu)
            return Coupling(alpha=alpha, beta=alpha + 1, gamma=gamma)
        alpha = 3 / (2 * gamma * self.mu) - 0.5
        return Coupling(alpha=alpha, beta=(2 * alpha**2 - 1) / (alpha - 1), gamma=gamma)

    @property
    def _gamma_of_conditions(self) -> float:
        return max(sqrt(self.learning_rate / (self.mu * self._steps_a_round)), self.learning_rate)

    @property
    def _steps_a_round(self) -> int:
        return self.steps or self.tau

    def with_epochs(self, epochs: int) -> Self:
        """The same, with the same γ, for so many epochs."""
        return super().with_epochs(epochs).model_copy(update={"tau": self._steps_a_round})

    def effective_steps(self, steps: Tensor) -> Tensor:
        """How far ag goes where every gradient is one and η is, too: the recursion, in numbers."""
        coupling, gain = self.coupling, self.coupling.gamma / self.learning_rate
        w, ag, reached = 0.0, 0.0, [0.0]
        for _ in range(int(steps.max())):
            md = w / coupling.beta + (1 - 1 / coupling.beta) * ag
            w, ag = (1 - 1 / coupling.alpha) * w + md / coupling.alpha + gain, md + 1
            reached.append(ag)
        return torch.tensor(reached, device=steps.device)[steps]

    def query_point(self, w: Tensor, ag: Tensor) -> Tensor:
        """md, where the gradient is taken."""
        return torch.lerp(ag, w, 1 / self.coupling.beta)

    def initial_state(self, parameters: Tensors) -> list[Tensors]:
        """w and ag, where nothing else is known both the parameters."""
        return [[parameter.clone() for parameter in parameters] for _ in range(2)]

    def step(
        self, parameters: Tensors, gradients: Tensors, slots: list[Tensors], *, number: Number, rate: Number
    ) -> None:
        coupling, (w, ag) = self.coupling, slots
        if self.weight_decay:
            torch._foreach_add_(gradients, parameters, alpha=self.weight_decay)
        steps = list(torch._foreach_mul(gradients, rate))
        torch._foreach_copy_(ag, parameters)
        torch._foreach_sub_(ag, steps)
        torch._foreach_lerp_(w, parameters, 1 / coupling.alpha)
        torch._foreach_sub_(w, steps, alpha=coupling.gamma / self.learning_rate)
        torch._foreach_copy_(parameters, ag)
        torch._foreach_lerp_(parameters, w, 1 / coupling.beta)

    def finish(self, parameters: Tensors, slots: list[Tensors]) -> None:
        torch._foreach_copy_(parameters, slots[1])
