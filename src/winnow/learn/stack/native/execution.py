"""Compiled training, seen as one more execution."""

import numpy as np
import torch
from torch import Tensor, nn

from winnow.learn.local import LocalUpdate
from winnow.learn.stack.data import TensorData
from winnow.learn.stack.execution import Batch, Cohort, Look
from winnow.learn.stack.native.build import load
from winnow.learn.stack.native.library import NativeModel, available_threads, can_step
from winnow.learn.stack.plan import Plan
from winnow.learn.stack.state import Layout, ModelState

JUST_COMPILED = "native training was compiled for this machine; the next start will be quicker"


class NativeExecution:
    """Whole rounds in compiled code; results do not depend on the number of threads, nor on who else is trained."""

    name = "native"

    def __init__(self, module: nn.Module, model: NativeModel, threads: int | None, notice: str = "") -> None:
        self.module = module
        self.notice = notice or (JUST_COMPILED if load().just_now else "")
        self.layout = Layout.of(module)
        self._model, self._asked = model, threads
        self._shapes = [module.get_parameter(name).shape for name in self.layout.trained]

    @property
    def _threads(self) -> int:
        """Asked for at each call: a worker process may be confined to fewer cores than the one that made this."""
        return self._asked or available_threads()

    def run_plan(
        self, start: ModelState, local: LocalUpdate, data: TensorData, plan: Plan, *, rate: float
    ) -> tuple[ModelState, Tensor] | None:
        if not can_step(local):
            return None
        flat = torch.cat([start[name].flatten() for name in self.layout.trained])
        parameters, losses = self._model.train(
            data.x,
            data.y,
            plan.rows,
            plan.sizes,
            flat,
            threads=self._threads,
            batch_size=local.batch_size,
            local=local,
            rate=rate,
        )
        return dict(zip(self.layout.trained, self._apart(parameters), strict=True)), losses

    def cohort(self, trained: list[Tensor], carried: list[Tensor]) -> Cohort:
        return _NativeCohort(self, trained)

    def gradients(self, trained: list[Tensor], batch: Batch) -> tuple[list[Tensor], Tensor]:
        clients, width = batch.weight.shape
        gradients, losses = self._model.train(
            batch.x,
            batch.y,
            np.arange(clients * width).reshape(1, clients, width),
            batch.sizes.reshape(1, clients),
            _flat(trained),
            threads=self._threads,
            batch_size=width,
            local=None,
        )
        return [part.contiguous() for part in self._apart(gradients)], losses[0]

    def look(self, layer: str | None) -> Look | None:
        if layer is not None and layer not in self._model.paths:
            return None

        def look(state: ModelState, x: Tensor, rows: Tensor, to_end: bool) -> tuple[Tensor, Tensor]:
            flat = torch.cat([state[name].flatten() for name in self.layout.trained])
            return self._model.look(x, rows, flat, threads=self._threads, watched=layer, to_end=to_end)

        return look

    @torch.no_grad()
    def outputs(self, states: ModelState, x: Tensor, mask: Tensor | None = None) -> Tensor:
        flat = _flat([states[name] for name in self.layout.trained])
        rows = torch.arange(x.shape[1])
        return torch.stack([self._model.look(own, rows, flat[k], threads=self._threads)[0] for k, own in enumerate(x)])

    def _apart(self, flat: Tensor) -> list[Tensor]:
        """Each parameter's columns of [K, P]."""
        columns = torch.split(flat, [shape.numel() for shape in self._shapes], 1)
        return [part.reshape(len(flat), *shape) for part, shape in zip(columns, self._shapes, strict=True)]


class _NativeCohort:
    def __init__(self, execution: NativeExecution, trained: list[Tensor]) -> None:
        self._execution, self._trained = execution, trained

    def gradients(self, batch: Batch) -> tuple[list[Tensor], Tensor]:
        return self._execution.gradients(self._trained, batch)


def _flat(trained: list[Tensor]) -> Tensor:
    """[K, P]"""
    return torch.cat([tensor.flatten(1) for tensor in trained], 1)
