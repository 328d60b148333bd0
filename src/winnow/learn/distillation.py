"""Distillation on open samples: models learn the probabilities that others gave them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from winnow.core import ModelError
from winnow.learn.stack import Batch, Draw, GradientRule, LocalTraining, ModelState, StepContext, TensorData, mean_loss

DISTILLATION_PHASE = -3
"""The phase of distillation: its batches are in an order of their own."""


@dataclass(frozen=True, kw_only=True)
class SoftLabelGradient(GradientRule):
    """CE(f(x), p): the samples' labels are rows of probabilities."""

    @property
    def draws(self) -> Sequence[Draw]:
        return (Draw("all"),)

    def __call__(
        self, at: StepContext, parameters: list[Tensor], batches: Sequence[Batch]
    ) -> tuple[list[Tensor], Tensor]:
        (batch,) = batches
        gradients, losses = at.gradients(parameters, batch)
        return gradients, mean_loss(batch, losses)


def distilled(training: LocalTraining, start: ModelState, targets: Tensor, epochs: int) -> ModelState:
    """Models [K, ...] after so many epochs over the open samples towards these probabilities, [open, classes]."""
    shown = open_samples(training)
    present = np.unique(training.clients)
    data = TensorData(
        x=shown,
        y=targets.to(shown.device),
        rows=np.tile(np.arange(len(shown)), len(present)),
        offsets=np.arange(len(present) + 1) * len(shown),
        loaded_clients=present,
    )
    trained = replace(training, data=data).train(
        start, epochs=epochs, phase=DISTILLATION_PHASE, gradient_rule=SoftLabelGradient()
    )
    return trained.states


@torch.no_grad()
def predictions(training: LocalTraining, states: ModelState) -> Tensor:
    """The probabilities that each of the models gives the open samples, [K, open, classes]."""
    shown = open_samples(training).unsqueeze(0)
    told = []
    for place in range(len(training.clients)):  # one after another: all open samples of one model fit into memory
        model = {name: stack[place : place + 1] for name, stack in states.items()}
        told.append(training.execution.outputs(model, shown))
    return torch.cat(told).softmax(2)


def open_samples(training: LocalTraining) -> Tensor:
    if training.open is None:
        raise ModelError("there are no open samples here; this party needs the same open.npz as all others")
    return training.open
