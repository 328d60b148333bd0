"""Local training over a leading dimension of clients, for any `nn.Module`."""

from winnow.learn.stack.batch_plan import Draw
from winnow.learn.stack.execution_benchmark import StepBenchmark
from winnow.learn.stack.execution_choice import ExecutionSetting, choose_execution
from winnow.learn.stack.execution_interface import Batch, Execution
from winnow.learn.stack.flat_client_data import ClientSamples, LazyTensorData, TensorData, as_tensor
from winnow.learn.stack.gpu_memory import clients_that_fit, free_bytes
from winnow.learn.stack.gradient_rule import GradientRule, StepContext, mean_loss
from winnow.learn.stack.local_training_start import LocalStart
from winnow.learn.stack.per_sample_losses import LOSSES, Loss, as_loss
from winnow.learn.stack.precision import Precision, allow_tf32, autocast_context
from winnow.learn.stack.train import CohortTrainingResult, LocalTraining
from winnow.learn.stack.trainable_state import ModelState, StateLayout, model_state, repeat_state
from winnow.learn.stack.user_training_functions import OwnLoop, OwnStep, OwnTraining

__all__ = [
    "LOSSES",
    "Batch",
    "ClientSamples",
    "CohortTrainingResult",
    "Draw",
    "Execution",
    "ExecutionSetting",
    "GradientRule",
    "LazyTensorData",
    "LocalStart",
    "LocalTraining",
    "Loss",
    "ModelState",
    "OwnLoop",
    "OwnStep",
    "OwnTraining",
    "Precision",
    "StateLayout",
    "StepBenchmark",
    "StepContext",
    "TensorData",
    "allow_tf32",
    "as_loss",
    "as_tensor",
    "autocast_context",
    "choose_execution",
    "clients_that_fit",
    "free_bytes",
    "mean_loss",
    "model_state",
    "repeat_state",
]
