"""The compiled kernels' interface: the structures of `source/interface.h`, filled from tensors."""

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.core import ModelError
from winnow.learn.local import Adam, LocalUpdate, Sgd
from winnow.learn.stack.data import Indices
from winnow.learn.stack.native.build import load

_Int, _Real, _Pointer = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p

DENSE, CONVOLUTION, RELU, TANH, SIGMOID, MAX_POOL, MEAN_POOL, FLATTEN = range(8)
LOSSES = {"mse": 0, "cross-entropy": 1}
_GRADIENT, _SGD, _ADAM = range(3)
_BAD_CLASS = 1
PRECISIONS = {torch.float32: "f32", torch.float64: "f64"}


def _fields(**kinds: type) -> list[tuple[str, type]]:
    return list(kinds.items())


class LayerSpec(ctypes.Structure):
    _fields_ = _fields(
        kind=_Int,
        outputs=_Int,
        rows=_Int,
        cols=_Int,
        row_stride=_Int,
        col_stride=_Int,
        row_padding=_Int,
        col_padding=_Int,
        weight=_Int,
        bias=_Int,
    )


class _ModelSpec(ctypes.Structure):
    _fields_ = _fields(
        layers=ctypes.POINTER(LayerSpec),
        count=_Int,
        channels=_Int,
        rows=_Int,
        cols=_Int,
        parameters=_Int,
        loss=_Int,
    )


class _OptimiserSpec(ctypes.Structure):
    _fields_ = _fields(
        kind=_Int,
        rate=_Real,
        momentum=_Real,
        nesterov=_Real,
        weight_decay=_Real,
        beta1=_Real,
        beta2=_Real,
        epsilon=_Real,
    )


class _RoundSpec(ctypes.Structure):
    _fields_ = _fields(
        x=_Pointer,
        y=_Pointer,
        batches=_Pointer,
        sizes=_Pointer,
        steps=_Int,
        clients=_Int,
        width=_Int,
        batch_size=_Int,
        threads=_Int,
        start=_Pointer,
        start_step=_Int,
        result=_Pointer,
        losses=_Pointer,
    )


class _LookSpec(ctypes.Structure):
    _fields_ = _fields(
        parameters=_Pointer,
        x=_Pointer,
        rows=_Pointer,
        count=_Int,
        threads=_Int,
        watched=_Int,
        seen=_Pointer,
        outputs=_Pointer,
    )


def available_threads() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_step(local: LocalUpdate) -> bool:
    """Whether an optimiser is known to the compiled code."""
    return type(local) in (Sgd, Adam)


@dataclass(frozen=True, kw_only=True)
class NativeModel:
    """A model as the compiled code sees it: layers over one flat list of P parameters."""

    layers: Sequence[LayerSpec]
    paths: Sequence[str]
    """What the layers are called in the model; empty for functions."""
    channels: Sequence[int]
    """Of what each layer makes."""
    image: tuple[int, int, int]
    """Channels, rows and columns of a sample."""
    parameters: int
    loss: str

    def train(
        self,
        x: Tensor,
        y: Tensor,
        rows: Indices,
        sizes: Indices,
        start: Tensor,
        *,
        threads: int,
        batch_size: int,
        local: LocalUpdate | None,
        rate: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """What clients make of a start [P] or [K, P] in the batches [S, K, B]: parameters [K, P], losses [S, K, B].

        Without a local update it is one step's gradients [K, P] instead of parameters.
        """
        steps, clients, width = rows.shape
        x, y, start = x.contiguous(), self._targets(x, y), start.contiguous()
        rows, sizes = (np.ascontiguousarray(array, np.int64) for array in (rows, sizes))
        result = start.new_empty(clients, self.parameters)
        losses = start.new_zeros(steps, clients, width)
        spec = _RoundSpec(
            x=x.data_ptr(),
            y=y.data_ptr(),
            batches=_address(rows),
            sizes=_address(sizes),
            steps=steps,
            clients=clients,
            width=width,
            batch_size=batch_size,
            threads=threads,
            start=start.data_ptr(),
            start_step=self.parameters if start.dim() > 1 else 0,
            result=result.data_ptr(),
            losses=losses.data_ptr(),
        )
        _call("train", x.dtype, self._spec(), _optimiser(local, rate), spec)
        return result, losses

    def look(
        self,
        x: Tensor,
        rows: Tensor,
        parameters: Tensor,
        *,
        threads: int,
        watched: str | None = None,
        to_end: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """For some rows of x the outputs [n, ...] and, summed over each channel's image, a watched layer's [n, q].

        What is not asked for is empty: the outputs of a pass that does not go on to the end, or nothing watched.
        """
        x, rows, parameters = x.contiguous(), rows.contiguous(), parameters.contiguous()
        place = -1 if watched is None else self.paths.index(watched)
        seen = x.new_empty(len(rows), 0 if place < 0 else self.channels[place])
        outputs = x.new_empty(len(rows) if to_end else 0, self.channels[-1])
        spec = _LookSpec(
            parameters=parameters.data_ptr(),
            x=x.data_ptr(),
            rows=rows.data_ptr(),
            count=len(rows),
            threads=threads,
            watched=place,
            seen=seen.data_ptr(),
            outputs=outputs.data_ptr() if to_end else None,
        )
        _call("look", x.dtype, self._spec(), spec)
        return outputs, seen

    def _targets(self, x: Tensor, y: Tensor) -> Tensor:
        return (y.long() if self.loss == "cross-entropy" else y.to(x.dtype)).contiguous()

    def _spec(self) -> _ModelSpec:
        channels, rows, cols = self.image
        return _ModelSpec(
            layers=(LayerSpec * len(self.layers))(*self.layers),
            count=len(self.layers),
            channels=channels,
            rows=rows,
            cols=cols,
            parameters=self.parameters,
            loss=LOSSES[self.loss],
        )


def _optimiser(local: LocalUpdate | None, rate: float) -> _OptimiserSpec:
    if isinstance(local, Sgd):
        return _OptimiserSpec(
            kind=_SGD,
            rate=rate,
            momentum=local.momentum,
            nesterov=local.nesterov,
            weight_decay=local.weight_decay,
        )
    if isinstance(local, Adam):
        return _OptimiserSpec(
            kind=_ADAM,
            rate=rate,
            beta1=local.beta1,
            beta2=local.beta2,
            epsilon=local.epsilon,
            weight_decay=local.weight_decay,
        )
    return _OptimiserSpec(kind=_GRADIENT)


def _address(array: NDArray[np.int64]) -> int:
    return array.ctypes.data


def _call(name: str, dtype: torch.dtype, *specs: Any) -> None:
    code = load().functions[f"winnow_{name}_{PRECISIONS[dtype]}"](*(ctypes.byref(spec) for spec in specs))
    if code == _BAD_CLASS:
        raise ModelError("a sample's class is not one of the model's outputs; give the model an output for every class")
    if code:
        raise MemoryError("not enough memory to train natively")
