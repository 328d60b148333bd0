"""Distillation on open samples: models learn the probabilities that others gave them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from winnow.core import ModelError, stream
from winnow.learn.stack import Batch, Draw, GradientRule, LocalTraining, ModelState, StepContext, TensorData, mean_loss
from winnow.learn.stack.flat_client_data import Indices

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


def samples_of_round(training: LocalTraining, round: int, rows: int) -> Tensor:
    """So many of the open samples, those that a round is about. All parties draw the same, so that nobody has to send
    which they are.
    """
    shown = open_samples(training)
    if rows >= len(shown):
        return shown
    return shown[torch.from_numpy(_drawn(training.seed, round, len(shown), rows)).to(shown.device)]


def _drawn(seed: int, round: int, available: int, rows: int) -> Indices:
    return np.sort(stream(seed, "open samples", round).permutation(available)[:rows])


def distilled(training: LocalTraining, start: ModelState, shown: Tensor, targets: Tensor, epochs: int) -> ModelState:
    """Models [K, ...] after so many epochs over the samples shown towards these probabilities, [shown, classes]."""
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
def predictions(training: LocalTraining, states: ModelState, shown: Tensor) -> Tensor:
    """The probabilities that each of the models gives the samples shown, [K, shown, classes]."""
    told = []
    for place in range(len(training.clients)):  # one after another: all samples of one model fit into memory
        model = {name: stack[place : place + 1] for name, stack in states.items()}
        told.append(training.execution.outputs(model, shown.unsqueeze(0)))
    return torch.cat(told).softmax(2)


def open_samples(training: LocalTraining) -> Tensor:
    if training.open is None:
        raise ModelError("there are no open samples here; this party needs the same open.npz as all others")
    return training.open
