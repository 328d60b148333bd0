"""Choosing how a model is trained: the fastest way that gives what a plain loop gives.

Folding samples of several clients into one batch is wrong for code that looks across samples (`x - x.mean(0)`), and no
inspection of a model can rule that out. So each way is tried on two clients with different parameters and a ragged
batch, and used only if outputs, gradients and buffers agree with the loop's.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Literal

from torch import Tensor, nn

from winnow.core import ModelError
from winnow.learn.stack.chain import find_chain
from winnow.learn.stack.execution import Execution
from winnow.learn.stack.line import find_line
from winnow.learn.stack.looped import LoopedExecution
from winnow.learn.stack.losses import Loss, first_line
from winnow.learn.stack.mapped import MappedExecution
from winnow.learn.stack.native import NativeExecution, find_native, switched_off
from winnow.learn.stack.pace import CLEARLY, Pace
from winnow.learn.stack.stacked import StackedExecution
from winnow.learn.stack.state import Layout
from winnow.learn.stack.trial import Trial

Force = Literal["auto", "native", "stacked", "vmap", "loop"]

NO_NATIVE_FORM = (
    "only lines of dense layers, plain convolutions, pooling and activations with the losses mse or cross-entropy "
    "can be compiled, only for a CPU, and not with WINNOW_NATIVE=0"
)


def choose_execution(
    module: nn.Module,
    sample_x: Tensor,
    sample_y: Tensor,
    loss: Loss,
    force: Force = "auto",
    threads: int | None = None,
    pace: Pace | None = None,
) -> Execution:
    """The fastest execution that agrees with a plain loop on a few samples [n, ...]; or the one asked for.

    Native execution uses all cores unless told otherwise; its results do not depend on the number of threads. Whether
    a loop is faster than the others is only known if the pace is measured.
    """
    module = copy.deepcopy(module).to(sample_x.device)
    _check_fit(module, sample_x, sample_y, loss)
    if force == "loop":
        return LoopedExecution(module, loss)
    trial = Trial.of(module, sample_x, sample_y, loss)
    reasons: dict[str, str] = {}
    for name, build in _ways(module, loss, sample_x[:1], threads):
        if force in ("auto", name):
            reason = trial.refusal(build)
            if not reason:
                found = build(module, _notice(name, reasons))
                return found if force != "auto" or pace is None else _or_loop(found, loss, sample_x, sample_y, pace)
            reasons[name] = reason
    if force != "auto":
        reason = reasons.get(force, NO_NATIVE_FORM)
        raise ModelError(f"the model cannot be trained {force}: {reason}; let Winnow choose with 'auto'")
    return LoopedExecution(module, loss, _notice("loop", reasons))


def _or_loop(found: Execution, loss: Loss, x: Tensor, y: Tensor, pace: Pace) -> Execution:
    """A loop, where that is clearly faster. It never is where Python or launches dominate."""
    if found.name == "native" or x.is_cuda or (isinstance(found, StackedExecution) and found.chain is not None):
        return found
    ratio = pace.ratio(found, LoopedExecution(found.module, loss), x, y)
    notice = f"clients are trained by loop (by {found.name} it takes {ratio:.1f} × as long here)"
    return LoopedExecution(found.module, loss, notice) if ratio > CLEARLY else found


Build = Callable[[nn.Module, str], Execution]


def _ways(module: nn.Module, loss: Loss, sample: Tensor, threads: int | None) -> Iterator[tuple[str, Build]]:
    """From the fastest on."""
    line = find_line(module)
    native = None if sample.is_cuda or switched_off() else find_native(module, line, sample, loss)
    if native is not None:
        yield "native", lambda model, notice: NativeExecution(model, native, threads, notice)
    chain = find_chain(line, Layout.of(module).trained, loss)
    if chain is not None:
        yield "stacked", lambda model, notice: StackedExecution(model, loss, notice, chain)
    yield "stacked", lambda model, notice: StackedExecution(model, loss, notice)
    yield "vmap", lambda model, notice: MappedExecution(model, loss, notice)


def _notice(name: str, reasons: dict[str, str]) -> str:
    slower = [f"not {other}: {reason}" for other, reason in reasons.items() if other != name]
    return f"clients are trained by {name} ({'; '.join(slower)})" if slower else ""


def _check_fit(module: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> None:
    """The model takes the samples, and the loss its outputs."""
    try:
        outputs = copy.deepcopy(module).eval()(x)
    except Exception as error:  # a user's model may fail in any way
        shape = f"{tuple(x.shape)} of {x.dtype}"
        raise ModelError(f"the model cannot take a batch of shape {shape}: {first_line(error)}") from error
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != x.shape[:1]:
        got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ModelError(
            f"the model returned {got} for {len(x)} samples; it must return one tensor with a row a sample"
        )
    loss.check(outputs, y)
