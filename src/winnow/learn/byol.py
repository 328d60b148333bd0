"""BYOL (Grill et al., 2020) at clients: features learnt without labels, by predicting one view of a sample by another.

Beside the model are a projection z and a prediction q of it. The target is a network of the same form that follows the
online one slowly, and never meets a label.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from winnow.learn.augment import view
from winnow.learn.client_round_method import ClientUpdate, LocalResult, LocalTraining
from winnow.learn.extended_model import BESIDE, MODEL
from winnow.learn.fedx import GLOBAL, FedXGradient
from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.moving_average import average_outputs, move_average
from winnow.learn.pseudo_labels import added
from winnow.learn.stack import Batch, GradientRule, Loss, ModelState, StepContext, mean_loss

ONLINE, TARGET = "online", "target"
"""What a client keeps: the networks that it had at the end of its last round."""
PREDICTOR = f"{BESIDE}predictor."


class ProjectionAndPrediction(nn.Module):
    """(z, q) side by side: z = projector(features), q = predictor(z). Both are dense layers with batch normalisation
    between, by the statistics of the batch at hand.
    """

    def __init__(self, features: int, hidden: int, width: int) -> None:
        super().__init__()
        self.projector, self.predictor = dense_layers(features, hidden, width), dense_layers(width, hidden, width)

    def forward(self, features: Tensor, predictions: Tensor) -> Tensor:
        z = self.projector(features)
        return torch.cat([z, self.predictor(z)], 1)


def dense_layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two, with batch normalisation between by the statistics of the batch at hand."""
    norm = nn.BatchNorm1d(hidden, track_running_stats=False)
    return nn.Sequential(nn.Linear(inputs, hidden), norm, nn.ReLU(), nn.Linear(hidden, outputs))


@dataclass(frozen=True, kw_only=True)
class ByolGradient(GradientRule):
    """‖q̄(v₁) − z̄'(v₂)‖² + ‖q̄(v₂) − z̄'(v₁)‖², where v₁ and v₂ are views of a sample, z' is the target's projection and
    a bar means length 1: 2 − 2·cos each (equation 2).
    """

    width: int
    average: float

    def __call__(
        self, at: StepContext, parameters: list[Tensor], batches: Sequence[Batch]
    ) -> tuple[list[Tensor], Tensor]:
        (batch,) = batches
        one, other = (at.changed(view, name, batch) for name in ("first view", "second view"))
        gradients, loss = self._one_way(at, parameters, batch, one, other)
        further, back = self._one_way(at, parameters, batch, other, one)
        return added(gradients, further), loss + back

    def _one_way(
        self, at: StepContext, parameters: list[Tensor], batch: Batch, seen: Tensor, hidden: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        goal = self.projection(average_outputs(at, batch, hidden))
        gradients, losses = at.gradients(parameters, batch._replace(x=seen, y=goal), self._loss())
        return gradients, mean_loss(batch, losses)

    def projection(self, outputs: Tensor) -> Tensor:
        return outputs[:, -2 * self.width : -self.width]

    def _loss(self) -> Loss:
        width = self.width
        return Loss("cosine", lambda outputs, goals: 2 - 2 * functional.cosine_similarity(outputs[:, -width:], goals))

    def after(self, at: StepContext, parameters: list[Tensor]) -> None:
        move_average(at, parameters, self.average)


class LocalNetworks(NamedTuple):
    """Where a client's round begins, [K, ...] or [1, ...]."""

    online: ModelState
    target: ModelState
    keep: dict[str, ModelState]
    """What is kept besides the networks."""


class ByolUpdate(ClientUpdate):
    """Steps of BYOL from networks that a method chooses (`begin`). The online network is sent; both are kept."""

    hidden: int = Field(256, ge=1, le=65_536)
    width: int = Field(64, ge=1, le=65_536)
    average: float = Field(0.99, ge=0, lt=1)
    fedx: float = Field(0.0, ge=0)
    fedx_temperature: float = Field(0.1, gt=0)
    training_factor: ClassVar[float] = 8 / 3  # two views forward and back, and both forward through the target
    own_steps: ClassVar[bool] = True
    uses_unlabelled: ClassVar[bool] = True
    learns_features: ClassVar[bool] = True
    labels_at: ClassVar[frozenset[str]] = frozenset({"clients", "some", "server"})

    def heads(self, features: int, outputs: int) -> nn.Module | None:
        return ProjectionAndPrediction(features, self.hidden, self.width)

    @abstractmethod
    def begin(self, training: LocalTraining) -> LocalNetworks: ...

    def update(self, training: LocalTraining) -> LocalResult:
        networks = self.begin(training)
        rule: GradientRule = ByolGradient(width=self.width, average=self.average)
        memory = networks.target
        if self.fedx:
            rule = FedXGradient(base=rule, width=self.width, weight=self.fedx, temperature=self.fedx_temperature)
            memory = memory | {f"{GLOBAL}{name}": tensor for name, tensor in training.model.items()}
        trained = training.train(networks.online, gradient_rule=rule, memory=memory)
        target = {name: trained.memory[name] for name in networks.target}
        return LocalResult(
            model=trained.states, trained=trained, keep={ONLINE: trained.states, TARGET: target, **networks.keep}
        )

    def passes(self, local: LocalOptimiser, samples: int) -> float:
        return super().passes(local, samples) * (1 + bool(self.fedx))  # two further gradients and the global network


def divergence(one: ModelState, other: ModelState) -> Tensor:
    """How far two encoders are apart, [K]: ‖W − W'‖ averaged over layers' weights, without the last layer and heads, as
    the authors of FedU and FedEMA compute it.
    """
    names = encoder_weights(one)
    distances = [(one[name] - other[name]).flatten(1).norm(dim=1) for name in names]
    return torch.stack(distances).mean(0)


def encoder_weights(states: ModelState) -> list[str]:
    """The names of weights (not offsets or scales) of an extended model's layers before the last; of all of its own
    where that is the only one.
    """
    weights = [name for name, tensor in states.items() if name.startswith(MODEL) and tensor.dim() > 2]
    return weights[:-1] or weights
