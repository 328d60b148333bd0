"""Training at the server, on labelled samples of its own."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from winnow.core import Randomness
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
        self, model: ModelState, *, epochs: int, batch_size: int | None, clip: float, round: int
    ) -> ModelState:
        """The model after so many epochs on these samples, whose gradients are bounded to a norm."""
        local = self.local.with_epochs(epochs)
        if batch_size is not None:
            local = local.model_copy(update={"batch_size": batch_size})
        training = LocalTraining(
            execution=self.execution,
            data=single_client_data(self.x, self.y),
            clients=np.zeros(1, np.int64),
            local=local,
            round=round,
            seed=self.seed,
            randomness=self.randomness,
            sent={"model": model},
            stored=({},),
        )
        trained = training.train(gradient_rule=AugmentedGradient(clip=clip), phase=TEACHING_PHASE)
        return {name: tensor[0] for name, tensor in trained.states.items()}
