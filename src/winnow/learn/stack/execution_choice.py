"""Choosing how a model is trained: the fastest way that gives what a plain loop gives.

Folding samples of several clients into one batch is wrong for code that looks across samples (`x - x.mean(0)`), and no
inspection of a model can rule that out. So each way is tried on two clients with different parameters and a ragged
batch, and used only if outputs, gradients and buffers agree with the loop's.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Literal

from torch import Tensor, nn

from winnow.core import ModelError
from winnow.core.errors import first_line
from winnow.learn.stack.equivalence_check import EquivalenceCheck
from winnow.learn.stack.execution_benchmark import MIN_SPEEDUP, StepBenchmark
from winnow.learn.stack.execution_interface import Execution, ExecutionName
from winnow.learn.stack.layer_sequence import find_layer_sequence
from winnow.learn.stack.loop_execution import LoopExecution
from winnow.learn.stack.mlp_gradients import find_mlp
from winnow.learn.stack.native import NativeExecution, native_disabled, native_model
from winnow.learn.stack.per_sample_losses import Loss
from winnow.learn.stack.precision import Precision, autocast_context
from winnow.learn.stack.stacked_execution import StackedExecution
from winnow.learn.stack.trainable_state import StateLayout
from winnow.learn.stack.user_training_execution import StepExecution, WholeLoopExecution
from winnow.learn.stack.user_training_functions import OwnStep, OwnTraining
from winnow.learn.stack.vmap_execution import VmapExecution

ExecutionSetting = ExecutionName | Literal["auto"]

NO_NATIVE_FORM = (
    "native execution supports only sequences of dense, plain convolution, pooling and activation layers with the loss "
    "mse or cross-entropy, on a CPU, and WINNOW_NATIVE must not be 0"
)


def choose_execution(
    module: nn.Module,
    sample_x: Tensor,
    sample_y: Tensor,
    loss: Loss,
    execution: ExecutionSetting = "auto",
    threads: int | None = None,
    benchmark: StepBenchmark | None = None,
    precision: Precision = "float32",
    own: OwnTraining | None = None,
    compiled: bool = False,
    own_steps: str = "",
) -> Execution:
    """The fastest execution that agrees with a plain loop on a few samples [n, ...]; or the one asked for.

    A training of the user's `own` has no other form than the loop. A method with steps of its own (`own_steps` is its
    name) has no native form: whoever asks for that gets the next one, and is told.

    Native execution uses all cores unless told otherwise; its results do not depend on the number of threads. With
    a `benchmark` an execution that may be slower than the next one is measured. `compiled` is for stacked steps on a
    CUDA device.
    """
    module = copy.deepcopy(module).to(sample_x.device)
    with autocast_context(precision, sample_x.device):
        _check_fit(module, sample_x, sample_y, loss)
        if isinstance(own, OwnStep):
            own.check(copy.deepcopy(module), sample_x, sample_y)
    if own is not None:
        return _own_execution(module, loss, own, execution, precision)
    if not StateLayout.of(module).trained:
        raise ModelError("the model cannot be trained: none of its parameters has requires_grad = True")
    if execution == "loop":
        return LoopExecution(module, loss, precision=precision)
    trial = EquivalenceCheck.of(module, sample_x, sample_y, loss, precision)
    every = _ways(module, loss, sample_x[:1], threads, precision, compiled)
    reasons = {"native": "native execution supports float32 only"} if precision == "bfloat16" else {}
    if own_steps:
        every = (way for way in every if way[0] != "native")
        if execution in ("auto", "native") and sample_x.device.type == "cpu":
            execution, reasons["native"] = "auto", f"{own_steps} takes steps of its own"
    ways = (way for way in every if execution in ("auto", way[0]))
    sound = _sound(module, ways, trial, reasons)
    found = next(sound, None)
    if found is None and execution != "auto":
        reason = reasons.get(execution, NO_NATIVE_FORM)
        raise ModelError(f"execution '{execution}' cannot train this model: {reason}; set engine.execution = 'auto'")
    if found is None:
        return LoopExecution(module, loss, _notice("loop", reasons), precision=precision)
    if execution != "auto" or benchmark is None or sample_x.is_cuda or _surely_fastest(found, benchmark.batch_size):
        return found
    rival = next(sound, None) if found.name == "native" else None
    race = partial(benchmark.ratio, x=sample_x, y=sample_y, threads=threads)
    return _faster(found, rival or LoopExecution(module, loss, precision=precision), race)


def _own_execution(
    module: nn.Module, loss: Loss, own: OwnTraining, execution: ExecutionSetting, precision: Precision
) -> Execution:
    if execution not in ("auto", "loop"):
        raise ModelError(
            f"engine.execution = '{execution}' cannot run {own.keyword}=, a function of your own; set it to 'auto'"
        )
    if isinstance(own, OwnStep):
        return StepExecution(module, loss, own, precision=precision)
    if precision == "bfloat16":
        raise ModelError("engine.precision: train= decides about its own precision; use torch.autocast in it")
    return WholeLoopExecution(module, loss, own)


def _surely_fastest(found: Execution, batch_size: int) -> bool:
    """Nobody need measure small models: Python takes most of the time of other ways."""
    if isinstance(found, NativeExecution):
        return found.surely_fastest(batch_size)
    return isinstance(found, StackedExecution) and found.mlp is not None


SpeedRatio = Callable[[Execution, Execution], float]


def _faster(found: Execution, other: Execution, race: SpeedRatio) -> Execution:
    """The other one, if it is clearly faster."""
    ratio = race(found, other)
    if ratio <= MIN_SPEEDUP:
        return found
    other.notice = f"training clients with {other.name}: on this machine {found.name} takes {ratio:.1f} times as long"
    return other


ExecutionBuilder = Callable[[nn.Module, str], Execution]


def _sound(
    module: nn.Module, ways: Iterable[tuple[str, ExecutionBuilder]], trial: EquivalenceCheck, reasons: dict[str, str]
) -> Iterator[Execution]:
    """Those that give what a loop gives; for the others the reason is noted."""
    for name, build in ways:
        reason = trial.mismatch(build)
        if reason:
            reasons[name] = reason
        else:
            yield build(module, _notice(name, reasons))


def _ways(
    module: nn.Module, loss: Loss, sample: Tensor, threads: int | None, precision: Precision, compiled: bool
) -> Iterator[tuple[str, ExecutionBuilder]]:
    """From the fastest on. What is written out by hand is so for single precision."""
    line, by_hand = find_layer_sequence(module), precision != "bfloat16"
    compiles = by_hand and sample.device.type == "cpu" and not native_disabled()
    native = native_model(module, line, sample, loss) if compiles else None
    if native is not None:
        yield "native", lambda model, notice: NativeExecution(model, native, threads, notice)
    mlp = find_mlp(line, StateLayout.of(module).trained) if by_hand else None
    if mlp is not None:
        yield "stacked", lambda model, notice: StackedExecution(model, loss, notice, mlp, precision=precision)
    yield "stacked", lambda model, notice: StackedExecution(model, loss, notice, precision=precision, compiled=compiled)
    yield "vmap", lambda model, notice: VmapExecution(model, loss, notice, precision=precision)


def _notice(name: str, reasons: dict[str, str]) -> str:
    slower = [f"not {other}: {reason}" for other, reason in reasons.items() if other != name]
    return f"training clients with {name} ({'; '.join(slower)})" if slower else ""


def _check_fit(module: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> None:
    """The model takes the samples, and the loss its outputs."""
    try:
        outputs = copy.deepcopy(module).eval()(x)
    except Exception as error:  # a user's model may fail in any way
        shape = f"{tuple(x.shape)} of {x.dtype}"
        raise ModelError(f"the model does not accept a batch of shape {shape}: {first_line(error)}") from error
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != x.shape[:1]:
        got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ModelError(
            f"the model returned {got} for {len(x)} samples; it must return one tensor with one row per sample"
        )
    loss.check(outputs, y)
