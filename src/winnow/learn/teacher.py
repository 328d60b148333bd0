"""Training at the server: on labelled samples of its own, or on open ones."""

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from winnow.core import Randomness
from winnow.learn.distillation import distilled, samples_of_round
from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.pseudo_labels import AugmentedGradient
from winnow.learn.stack import Execution, LocalTraining, ModelState
from winnow.learn.trial_update_on_server_samples import single_client_data

TEACHING_PHASE = -2
"""The phase of training at the server: its batches are in an order of their own."""


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """The server's labelled samples, and how it trains on them: as clients do, with samples changed weakly."""

    execution: Execution
    x: Tensor
    y: Tensor
    local: LocalOptimiser
    seed: int
    randomness: Randomness

    def __call__(
        self,
        model: ModelState,
        *,
        epochs: int,
        batch_size: int | None,
        clip: float,
        round: int,
        rate_factor: float = 1.0,
    ) -> ModelState:
        """The model after so many epochs on these samples, whose gradients are bounded to a norm."""
        local = self.local.with_epochs(epochs)
        if rate_factor != 1:
            local = local.model_copy(update={"learning_rate": rate_factor * local.learning_rate})
        if batch_size is not None:
            local = local.model_copy(update={"batch_size": batch_size})
        training = replace(_at_server(self, model, round), data=single_client_data(self.x, self.y), local=local)
        trained = training.train(gradient_rule=AugmentedGradient(clip=clip), phase=TEACHING_PHASE)
        return {name: tensor[0] for name, tensor in trained.states.items()}


@dataclass(frozen=True, kw_only=True)
class Distiller:
    """The open samples, and how the server trains on them: as clients do."""

    execution: Execution
    x: Tensor
    local: LocalOptimiser
    seed: int
    randomness: Randomness

    def __call__(self, model: ModelState, targets: Tensor, *, epochs: int, round: int) -> ModelState:
        """The model after so many epochs towards these probabilities, which are of the round's open samples."""
        training = replace(_at_server(self, model, round), open=self.x)
        shown = samples_of_round(training, round, len(targets))
        return {name: tensor[0] for name, tensor in distilled(training, training.model, shown, targets, epochs).items()}


def _at_server(who: Teacher | Distiller, model: ModelState, round: int) -> LocalTraining:
    """A training whose one client is the server."""
    return LocalTraining(
        execution=who.execution,
        data=single_client_data(who.x, who.x),
        clients=np.zeros(1, np.int64),
        local=who.local,
        round=round,
        seed=who.seed,
        randomness=who.randomness,
        sent={"model": model},
        stored=({},),
    )
