"""Local training over a leading dimension of clients, for any `nn.Module`."""

from winnow.learn.stack.choose import Force, choose_execution
from winnow.learn.stack.data import TensorData, as_tensor
from winnow.learn.stack.execution import Execution
from winnow.learn.stack.losses import LOSSES, Loss, as_loss
from winnow.learn.stack.pace import Pace
from winnow.learn.stack.state import ModelState, model_state, repeat_state
from winnow.learn.stack.train import Trained, train

__all__ = [
    "LOSSES",
    "Execution",
    "Force",
    "Loss",
    "ModelState",
    "Pace",
    "TensorData",
    "Trained",
    "as_loss",
    "as_tensor",
    "choose_execution",
    "model_state",
    "repeat_state",
    "train",
]
