"""Local training over a leading dimension of clients, for any `nn.Module`."""

from winnow.learn.stack.choose import Force, choose_execution
from winnow.learn.stack.data import ClientSamples, LoadedData, TensorData, as_tensor
from winnow.learn.stack.departure import Departure
from winnow.learn.stack.execution import Batch, Execution, Gradients, Slope
from winnow.learn.stack.losses import LOSSES, Loss, as_loss
from winnow.learn.stack.memory import clients_that_fit, free_bytes
from winnow.learn.stack.pace import Pace
from winnow.learn.stack.precision import Precision, allow_tf32, casting
from winnow.learn.stack.state import Layout, ModelState, model_state, repeat_state
from winnow.learn.stack.train import Trained, train

__all__ = [
    "LOSSES",
    "Batch",
    "ClientSamples",
    "Departure",
    "Execution",
    "Force",
    "Gradients",
    "Layout",
    "LoadedData",
    "Loss",
    "ModelState",
    "Pace",
    "Precision",
    "Slope",
    "TensorData",
    "Trained",
    "allow_tf32",
    "as_loss",
    "as_tensor",
    "casting",
    "choose_execution",
    "clients_that_fit",
    "free_bytes",
    "model_state",
    "repeat_state",
    "train",
]
