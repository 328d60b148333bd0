"""Clients trained by a function of the user's own, one client after another."""

import copy

import torch
from torch import Tensor, nn

from winnow.core import ModelError
from winnow.learn.stack.loop_execution import LoopExecution
from winnow.learn.stack.per_sample_losses import Loss
from winnow.learn.stack.precision import Precision, autocast_context
from winnow.learn.stack.trainable_state import ModelState
from winnow.learn.stack.user_training_functions import OwnBatches, OwnLoop, OwnStep, TrainContext, place_of


class StepExecution(LoopExecution):
    """The loop, with the gradient of what the user's step returns."""

    def __init__(self, module: nn.Module, loss: Loss, own: OwnStep, *, precision: Precision) -> None:
        super().__init__(module, loss, "clients train by step=, one after another", precision=precision)
        self.own = own

    def client_gradients(
        self, parameters: list[Tensor], x: Tensor, y: Tensor, weight: Tensor, loss: Loss
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """The step has its own loss and no weights; methods that bring others are refused (`check_own_training`)."""
        with autocast_context(self.precision, x.device):
            own_loss = self.own.loss(self.module, x, y)
        return self.own.gradients(own_loss, parameters), own_loss


class WholeLoopExecution(LoopExecution):
    """A client's whole training in a round is the user's."""

    def __init__(self, module: nn.Module, loss: Loss, own: OwnLoop) -> None:
        super().__init__(module, loss, own.notice)
        self.own = own

    def train_client(self, state: ModelState, batches: OwnBatches, context: TrainContext) -> tuple[ModelState, float]:
        """What the user's function makes of a state, and the loss that it tells.

        It has a module of its own, so that nothing it leaves there (gradients, frozen layers) reaches another client.
        """
        module = copy.deepcopy(self.module)
        module.load_state_dict(state)
        loss = self.own.run(module.train(), batches, context)
        trained = {name: tensor.detach() for name, tensor in module.state_dict().items()}
        if {name: _form(tensor) for name, tensor in trained.items()} != {n: _form(t) for n, t in state.items()}:
            raise ModelError(f"{place_of(self.own)} changed the model's layers or their types; it may train them only")
        return trained, loss


def _form(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype
