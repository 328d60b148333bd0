"""Calling the compiled kernels: their structures, filled from tensors."""

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.core import ModelError
from winnow.learn.accelerated_sgd import AcceleratedSgd
from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.stack.flat_client_data import Indices
from winnow.learn.stack.native.ctypes_structures import (
    BAD_CLASS,
    BAD_ROW,
    CROSS_ENTROPY,
    SQUARED_ERROR,
    TOO_LARGE,
    ClientRows,
    ForwardSpec,
    LayerSpec,
    ModelSpec,
    RoundSpec,
)
from winnow.learn.stack.native.load_or_compile_kernels import load_kernels
from winnow.learn.stack.native.optimiser_spec import optimiser_spec

LOSSES = {"mse": SQUARED_ERROR, "cross-entropy": CROSS_ENTROPY}
PRECISIONS = {torch.float32: "float", torch.float64: "double"}
WIDEST_BLOCK = 1 << 20
"""Samples that no block takes: rows to look at, however many, all go the same way."""
_FAILURES = {
    BAD_CLASS: "a label is outside the model's outputs; give the model one output per class",
    BAD_ROW: "a client's row index is outside the data; every index must be a row of both x and y",
    TOO_LARGE: "the model is too large for native training",
}


def available_threads() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class FlatLocalStart:
    """A `LocalStart` over the flat list of P parameters; each tensor is [K, P], or [1, P] for all clients."""

    start: Tensor
    proximal_weight: float = 0.0
    anchor: Tensor | None = None
    gradient_offset: Tensor | None = None
    trainable: Tensor | None = None
    """[P] whether a parameter is trained; all are unless given."""
    slots: tuple[Tensor, Tensor] | None = None
    """Where w and ag of accelerated steps start; both at the start unless given."""

    def tensors(self) -> tuple[Tensor | None, ...]:
        return self.start, self.anchor, self.gradient_offset, *(self.slots or (None, None))


class TrainedRows(NamedTuple):
    """What K clients made of their starts."""

    parameters: Tensor  # [K, P]
    losses: Tensor  # [S, K, B]
    slots: list[Tensor]  # [K, P] each: w and ag of accelerated steps


@dataclass(frozen=True, kw_only=True)
class NativeModel:
    """A model as the compiled code sees it: layers over one flat list of P parameters."""

    layers: Sequence[LayerSpec]
    paths: Sequence[str]
    """What the layers are called in the model; empty for functions, and for layers that make no images nor lists."""
    channels: Sequence[int]
    """Of what each layer makes."""
    image: tuple[int, int, int]
    """Channels, rows and columns of a sample."""
    parameters: int
    loss: str
    precision: torch.dtype

    @property
    def newly_built(self) -> bool:
        return load_kernels(PRECISIONS[self.precision]).newly_built

    def train(
        self,
        x: Tensor,
        y: Tensor,
        rows: Indices,
        sizes: Indices,
        local_start: FlatLocalStart,
        *,
        threads: int,
        batch_size: int,
        local: LocalOptimiser | None,
        rate: float = 0.0,
    ) -> TrainedRows:
        """What clients make of their starts in the batches [S, K, B].

        Without a local update it is one step's gradients [K, P] instead of parameters. The batch size is the one asked
        for: it decides how sums are split, which must not depend on who else is in the cohort.
        """
        steps, clients, width = rows.shape
        x, y = self._samples(x), self._targets(x, y)
        rows, sizes = (np.ascontiguousarray(array, np.int64) for array in (rows, sizes))
        start, anchor, gradient_offset, first, second = (self._parameters(flat) for flat in local_start.tensors())
        result = x.new_empty(clients, self.parameters)
        slot = x.new_empty(clients, self.parameters) if isinstance(local, AcceleratedSgd) else None
        losses = x.new_zeros(steps, clients, width)
        spec = RoundSpec(
            x=x.data_ptr(),
            y=y.data_ptr(),
            samples=len(x),
            batches=_address(rows),
            sizes=_address(sizes),
            steps=steps,
            clients=clients,
            width=width,
            threads=threads,
            start=_rows(start, clients),
            proximal_weight=local_start.proximal_weight,
            anchor=_rows(start if anchor is None else anchor, clients),
            gradient_offset=_rows(gradient_offset, clients),
            trainable=None if local_start.trainable is None else local_start.trainable.data_ptr(),
            first_slot=_rows(first, clients),
            second_slot=_rows(second, clients),
            result=result.data_ptr(),
            first_slot_result=None if slot is None else slot.data_ptr(),
            losses=losses.data_ptr(),
        )
        _check(self._library(batch_size).winnow_train(*_references(self._spec(), optimiser_spec(local, rate), spec)))
        return TrainedRows(result, losses, [] if slot is None else [slot, result])

    def forward(
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
        x, rows, flat = self._samples(x), rows.long().contiguous(), self._parameters(parameters)
        place = -1 if watched is None else self.paths.index(watched)
        watched_outputs = x.new_empty(len(rows), 0 if place < 0 else self.channels[place])
        outputs = x.new_empty(len(rows) if to_end else 0, self.channels[-1])
        spec = ForwardSpec(
            parameters=_rows(flat, 1).values,
            x=x.data_ptr(),
            samples=len(x),
            rows=rows.data_ptr(),
            count=len(rows),
            threads=threads,
            watched_layer=place,
            watched_outputs=watched_outputs.data_ptr(),
            outputs=outputs.data_ptr() if to_end else None,
        )
        _check(self._library(WIDEST_BLOCK).winnow_forward(*_references(self._spec(), spec)))
        return outputs, watched_outputs

    def _samples(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or x[:1].numel() not in (0, prod(self.image)):
            expected, found = "×".join(map(str, self.image)), f"{tuple(x.shape[1:])} on {x.device}"
            raise ModelError(f"native training expects samples of shape {expected} on a CPU; got {found}")
        return x.to(self.precision).contiguous()

    def _targets(self, x: Tensor, y: Tensor) -> Tensor:
        """Classes as [N] integers, or reals of which each sample has as many as the model has outputs."""
        classes = self.loss == "cross-entropy"
        fits = not y.is_floating_point() and y.dim() == 1 if classes else y.numel() == len(x) * self.channels[-1]
        if not fits or len(y) != len(x):
            kind = "one integer" if classes else f"{self.channels[-1]} reals"
            raise ModelError(
                f"native training with {self.loss} needs {kind} per sample; y is {tuple(y.shape)}, {y.dtype}"
            )
        return (y.long() if classes else y.to(self.precision)).contiguous()

    def _parameters(self, flat: Tensor | None) -> Tensor | None:
        """[K, P] or [1, P]"""
        return None if flat is None else flat.to(self.precision).reshape(-1, self.parameters).contiguous()

    def _library(self, samples: int) -> ctypes.CDLL:
        """The one whose blocks take so many samples; the widest if none does."""
        libraries = load_kernels(PRECISIONS[self.precision]).libraries
        return libraries[min((lanes for lanes in libraries if lanes >= samples), default=max(libraries))]

    def _spec(self) -> ModelSpec:
        channels, rows, cols = self.image
        return ModelSpec(
            layers=(LayerSpec * len(self.layers))(*self.layers),
            count=len(self.layers),
            channels=channels,
            rows=rows,
            cols=cols,
            parameters=self.parameters,
            loss=LOSSES[self.loss],
        )


def _address(array: NDArray[np.int64]) -> int:
    return array.ctypes.data


def _rows(flat: Tensor | None, clients: int) -> ClientRows:
    """Where each client's row begins; all see the same one if there is only one."""
    if flat is None:
        return ClientRows()
    if len(flat) not in (1, clients):
        raise ModelError(
            f"got {len(flat)} rows of parameters for {clients} clients; give one row per client, or one row for all"
        )
    return ClientRows(values=flat.data_ptr(), step=flat.shape[1] if len(flat) > 1 else 0)


def _references(*specs: ctypes.Structure) -> list[Any]:
    return [ctypes.byref(spec) for spec in specs]


def _check(code: int) -> None:
    if code in _FAILURES:
        raise ModelError(_FAILURES[code])
    if code:
        raise MemoryError("not enough memory for native training")
