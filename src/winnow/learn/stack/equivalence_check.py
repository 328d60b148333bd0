"""Does an execution give what a plain loop gives? Two clients, different parameters, a ragged batch."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from winnow.core import ModelError
from winnow.core.errors import first_line
from winnow.learn.stack.execution_interface import Batch, Execution
from winnow.learn.stack.loop_execution import LoopExecution
from winnow.learn.stack.per_sample_losses import Loss
from winnow.learn.stack.precision import Precision
from winnow.learn.stack.stacked_layers import UnstackableError
from winnow.learn.stack.trainable_state import ModelState, model_state, repeat_state, split_clients

_SIZES = np.array([3, 2])
_TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3}


@dataclass(frozen=True, kw_only=True)
class EquivalenceCheck:
    """One step of the loop, to compare others with.

    In double precision, because normalising a few samples magnifies rounding; in the model's own if it insists on it.
    Compiled code, which normalises nothing, answers in the model's own.
    """

    module: nn.Module
    states: ModelState
    batch: Batch
    expected: list[Tensor]
    tolerance: float
    precision: Precision = "float32"

    @classmethod
    def of(
        cls, module: nn.Module, x: Tensor, y: Tensor, loss: Loss, precision: Precision = "float32"
    ) -> "EquivalenceCheck":
        own = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
        failed: Exception | None = None
        for dtype in (torch.float64, own):
            try:
                return replace(cls._in_precision(dtype, module, x, y, loss), precision=precision)
            except Exception as error:  # a user's model may fail in any way
                failed = error
        assert failed is not None
        raise ModelError(f"the model cannot be trained: {first_line(failed)}") from failed

    @classmethod
    def _in_precision(
        cls, dtype: torch.dtype, module: nn.Module, x: Tensor, y: Tensor, loss: Loss
    ) -> "EquivalenceCheck":
        model = _without_dropout(module).to(dtype)
        loop = LoopExecution(model, loss)
        states = _different_clients(model_state(model), frozenset(loop.layout.trained))
        batch = _ragged_batch(x, y, dtype)
        expected = _step(loop, states, batch)
        return cls(module=model, states=states, batch=batch, expected=expected, tolerance=_TOLERANCE.get(dtype, 1e-2))

    def mismatch(self, build: Callable[[nn.Module, str], Execution]) -> str:
        """Why an execution does not do; empty if it does."""
        try:
            with _NoDecisions():
                found = _step(build(self.module, ""), self.states, self.batch)
                if self.precision == "bfloat16":  # which double precision is spared, and not every layer can take
                    _step(build(copy.deepcopy(self.module).float(), ""), *self._in_single_precision())
        except UnstackableError as error:
            return str(error)
        except Exception as error:  # whatever a model does that an execution cannot follow
            return first_line(error)
        agree = all(self._close(*pair) for pair in zip(found, self.expected, strict=True))
        return "" if agree else "its results differ from those of the loop; forward may mix samples of a batch"

    def _in_single_precision(self) -> tuple[ModelState, Batch]:
        states = {n: t.float() if t.is_floating_point() else t for n, t in self.states.items()}
        x, y = (t.float() if t.is_floating_point() else t for t in (self.batch.x, self.batch.y))
        return states, self.batch._replace(x=x, y=y, weight=self.batch.weight.float())

    def _close(self, found: Tensor, expected: Tensor) -> bool:
        if found.shape != expected.shape:
            return False
        tolerance = max(self.tolerance, _TOLERANCE.get(found.dtype, 0.0))
        found, expected = found.double(), expected.double()
        scale = expected.abs().nan_to_num(0, 0, 0).max().item() if expected.numel() else 0.0
        return torch.allclose(found, expected, rtol=tolerance, atol=tolerance * max(scale, 1e-3), equal_nan=True)


def _step(execution: Execution, states: ModelState, batch: Batch) -> list[Tensor]:
    """Gradients, losses of real samples, buffers afterwards, and outputs in evaluation."""
    states = {name: tensor.clone() for name, tensor in states.items()}
    carried = [states[name] for name in execution.layout.carried]
    with _NoDropout():
        cohort = execution.bind_cohort([states[name] for name in execution.layout.trained], carried)
        gradients, losses = cohort.gradients(batch)
        outputs = execution.outputs(states, split_clients(batch.x, len(batch.weight))[:, :2])
    return [*gradients, losses[batch.weight > 0], *carried, outputs]


def _ragged_batch(x: Tensor, y: Tensor, dtype: torch.dtype) -> Batch:
    """Rows of the sample for both clients, the second one's last row being padding."""
    width = int(_SIZES.max())
    rows = torch.arange(len(_SIZES) * width, device=x.device) % len(x)
    inside = torch.arange(width) < torch.from_numpy(_SIZES).unsqueeze(1)
    weight = (inside / torch.from_numpy(_SIZES).unsqueeze(1)).to(x.device, dtype)
    x, y = (_tame(samples[rows], dtype) for samples in (x, y))
    return Batch(x, y, weight, _SIZES, full=False)


def _tame(samples: Tensor, dtype: torch.dtype) -> Tensor:
    """Polluted samples may hold NaN, from which nothing can be told."""
    return samples.to(dtype).nan_to_num(0, 1, -1) if samples.is_floating_point() else samples


def _different_clients(state: ModelState, trained: frozenset[str]) -> ModelState:
    """States near the model's own, none like another. Parameters at zero are moved away, or they would hide others."""
    generator = torch.Generator().manual_seed(0)
    states = repeat_state(state, len(_SIZES))
    for name, rows in states.items():
        if rows.is_floating_point():
            noise = torch.rand(rows.shape, generator=generator).to(rows)
            rows.mul_(1 + 0.2 * noise).add_(noise, alpha=0.01 if name in trained else 0.0)
    return states


def _without_dropout(module: nn.Module) -> nn.Module:
    """Recurrent layers drop out between levels inside torch, where `_NoDropout` cannot reach."""
    model = copy.deepcopy(module)
    for part in model.modules():
        if isinstance(part, nn.RNNBase):
            part.dropout = 0.0
    return model


class _NoDropout(TorchFunctionMode):
    """Dropout does nothing while this is active: its noise would hide whether two executions agree."""

    _FUNCTIONS = frozenset(
        {
            functional.dropout,
            functional.dropout1d,
            functional.dropout2d,
            functional.dropout3d,
            functional.alpha_dropout,
            functional.feature_alpha_dropout,
            torch.dropout,
        }
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._FUNCTIONS:
            return args[0] if args else kwargs["input"]
        return func(*args, **(kwargs or {}))


class _NoDecisions(TorchFunctionMode):
    """Refuses to turn a tensor into a Python value: a choice made by it would be one for all clients at once.

    The samples of a trial may happen to make every client choose alike, so comparing results cannot show this.
    """

    _FUNCTIONS = frozenset(
        {
            Tensor.__bool__,
            Tensor.__int__,
            Tensor.__float__,
            Tensor.__index__,
            Tensor.__contains__,
            Tensor.item,
            Tensor.tolist,
            Tensor.numpy,
        }
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._FUNCTIONS:
            raise UnstackableError("forward converts a tensor to a Python value, which can differ between clients")
        return func(*args, **(kwargs or {}))
