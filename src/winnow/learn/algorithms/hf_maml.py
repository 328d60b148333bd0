"""HF-MAML (Fallah et al., 2020, section 4): a common model that is good after a step of each client's own.

Clients minimise F_k(w) = f_k(w − α·∇f_k(w)), whose gradient (I − α·∇²f_k(w))·∇f_k(w − α·∇f_k(w)) has a product with a
Hessian; a difference of two gradients stands for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.client_round_method import FINE_TUNING_PHASE, ClientUpdate, LocalResult, LocalTraining
from winnow.learn.local_optimiser import Sgd
from winnow.learn.selection import UniformSelector
from winnow.learn.stack import Batch, Draw, GradientRule, ModelState, StepContext, mean_loss


@dataclass(frozen=True, kw_only=True)
class HessianFreeGradient(GradientRule):
    """∇f(w'; D') − α·d with w' = w − α·∇f(w; D), where d is the difference of gradients along g = ∇f(w'; D'):

    d = (∇f(w + δ·g; D'') − ∇f(w − δ·g; D'')) / (2·δ). D, D' and D'' are batches of their own.
    """

    alpha: float
    delta: float

    @property
    def draws(self) -> Sequence[Draw]:
        return Draw(), Draw(), Draw()

    def __call__(
        self, at: StepContext, parameters: list[Tensor], batches: Sequence[Batch]
    ) -> tuple[list[Tensor], Tensor]:
        first, second, third = batches
        inner, _ = at.gradients(parameters, first)
        outer, losses = at.gradients(_moved(parameters, inner, -self.alpha), second)
        ahead, _ = at.gradients(_moved(parameters, outer, self.delta), third)
        behind, _ = at.gradients(_moved(parameters, outer, -self.delta), third)
        product = torch._foreach_div(torch._foreach_sub(ahead, behind), 2 * self.delta)
        return _moved(outer, list(product), -self.alpha), mean_loss(second, losses)


def _moved(tensors: list[Tensor], along: list[Tensor], by: float) -> list[Tensor]:
    return list(torch._foreach_add(tensors, along, alpha=by))


class MamlUpdate(ClientUpdate):
    """`local` makes its steps (β) along the Hessian-free meta-gradient. The loss reported is that after the inner step.

    A step takes four gradients. Tuned models are made as the method means them to be, by plain steps of α: by so many
    `adapt_steps` (it optimises for one), or for as many epochs as an evaluation asks.
    """

    name: Literal["hf-maml"] = "hf-maml"
    alpha: float = Field(0.01, gt=0)
    delta: float = Field(0.001, gt=0)
    adapt_steps: int | None = Field(None, ge=1)
    training_factor: ClassVar[float] = 4.0

    def update(self, training: LocalTraining) -> LocalResult:
        trained = training.train(gradient_rule=HessianFreeGradient(alpha=self.alpha, delta=self.delta))
        return LocalResult(model=trained.states, trained=trained)

    def fine_tune(self, training: LocalTraining, start: ModelState, epochs: int) -> ModelState:
        batch_size, steps = training.local.batch_size, self.adapt_steps
        inner = Sgd(
            learning_rate=self.alpha, batch_size=batch_size, steps=steps, epochs=epochs if steps is None else None
        )
        return replace(training, local=inner).train(start, phase=FINE_TUNING_PHASE).states


hf_maml = Recipe(
    name="hf-maml",
    summary="a global model that adapts well after one local step",
    select=UniformSelector,
    client=MamlUpdate,
    aggregate=partial(PartialAggregation, weights="uniform"),
)
