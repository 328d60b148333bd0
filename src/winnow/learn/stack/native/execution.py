"""Compiled training, seen as one more execution."""

import numpy as np
import torch
from torch import Tensor, nn

from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.stack.batch_plan import BatchPlan
from winnow.learn.stack.execution_interface import Batch, CohortGradients, ExecutionName, ForwardPass, PlanResult
from winnow.learn.stack.flat_client_data import TensorData
from winnow.learn.stack.local_training_start import LocalStart, expand_to_clients
from winnow.learn.stack.native.kernel_calls import (
    FlatLocalStart,
    NativeModel,
    available_threads,
)
from winnow.learn.stack.native.optimiser_spec import supports_optimiser
from winnow.learn.stack.per_sample_losses import Loss, as_loss
from winnow.learn.stack.precision import Precision
from winnow.learn.stack.trainable_state import ModelState, StateLayout

MIN_VECTOR_BATCH = 4
"""In a batch: vectors hold 8 or 16, and work on the empty places is in vain."""
MAX_CACHED_PARAMETERS = 100_000
"""They are read anew for every few samples."""
JUST_COMPILED = "compiled native training for this machine; the next run will start faster"


class NativeExecution:
    """Whole rounds in compiled code; results do not depend on the number of threads, nor on who else is trained."""

    name: ExecutionName = "native"
    precision: Precision = "float32"

    def __init__(self, module: nn.Module, model: NativeModel, threads: int | None, notice: str = "") -> None:
        self.module = module
        self.notice = notice or (JUST_COMPILED if model.newly_built else "")
        self.layout = StateLayout.of(module)
        self.loss, self.threads = as_loss(model.loss), threads
        self._model = model
        self._shapes = [module.get_parameter(name).shape for name in self.layout.trained]

    def surely_fastest(self, batch_size: int) -> bool:
        """Whether nobody need measure it: vectors are filled, and the parameters stay in a processor's cache."""
        return batch_size >= MIN_VECTOR_BATCH and self._model.parameters <= MAX_CACHED_PARAMETERS

    @property
    def _cores(self) -> int:
        """Asked for at each call: a worker process may be confined to fewer cores than the one that made this."""
        return self.threads or available_threads()

    def run_plan(
        self, local_start: LocalStart, local: LocalOptimiser, data: TensorData, plan: BatchPlan, *, rate: float
    ) -> PlanResult | None:
        if not supports_optimiser(local):
            return None
        slots = [self._flat(slot) for slot in local_start.slots]
        done = self._model.train(
            data.x,
            data.y,
            plan.rows,
            plan.sizes,
            FlatLocalStart(
                start=self._flat(local_start.states),
                proximal_weight=local_start.proximal_weight,
                anchor=self._flat(local_start.anchor) if local_start.proximal_weight and local_start.anchor else None,
                gradient_offset=self._flat(local_start.gradient_offset) if local_start.gradient_offset else None,
                trainable=None if local_start.trainable is None else self._trainable_mask(local_start.trainable),
                slots=(slots[0], slots[1]) if slots else None,
            ),
            threads=self._cores,
            batch_size=local.batch_size,
            local=local,
            rate=rate,
        )
        states = dict(zip(self.layout.trained, self._apart(done.parameters), strict=True))
        return PlanResult(states, done.losses, [self._apart(slot) for slot in done.slots])

    def bind_cohort(self, trained: list[Tensor], carried: list[Tensor], loss: Loss | None = None) -> CohortGradients:
        assert loss is None, "methods with losses of their own train stacked"
        return _NativeCohort(self, trained)

    def gradients(self, trained: list[Tensor], batch: Batch) -> tuple[list[Tensor], Tensor]:
        clients, width = batch.weight.shape
        gradients, losses, _ = self._model.train(
            batch.x,
            batch.y,
            np.arange(clients * width).reshape(1, clients, width),
            batch.sizes.reshape(1, clients),
            FlatLocalStart(start=_flat(trained)),
            threads=self._cores,
            batch_size=width,
            local=None,
        )
        return [part.contiguous() for part in self._apart(gradients)], losses[0]

    def forward_pass(self, layer: str | None) -> ForwardPass | None:
        if layer is not None and (layer == "" or layer not in self._model.paths):
            return None

        def forward(state: ModelState, x: Tensor, rows: Tensor, to_end: bool) -> tuple[Tensor, Tensor]:
            flat = torch.cat([state[name].flatten() for name in self.layout.trained])
            return self._model.forward(x, rows, flat, threads=self._cores, watched=layer, to_end=to_end)

        return forward

    @torch.no_grad()
    def outputs(self, states: ModelState, x: Tensor, mask: Tensor | None = None) -> Tensor:
        flat = self._flat(states)
        rows = torch.arange(x.shape[1])
        return torch.stack([self._model.forward(own, rows, flat[k], threads=self._cores)[0] for k, own in enumerate(x)])

    def _flat(self, states: ModelState) -> Tensor:
        return _flat([states[name] for name in self.layout.trained])

    def _trainable_mask(self, names: frozenset[str]) -> Tensor:
        """For each of the flat parameters whether it is trained."""
        sizes = torch.tensor([shape.numel() for shape in self._shapes])
        trainable = torch.tensor([name in names for name in self.layout.trained], dtype=torch.uint8)
        return trainable.repeat_interleave(sizes)

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
    """[K, P], or [1, P] where all clients share everything."""
    clients = max(len(tensor) for tensor in trained)
    return torch.cat([expand_to_clients(tensor, clients).flatten(1) for tensor in trained], 1)
