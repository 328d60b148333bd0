"""Local training on a CUDA device: a step is captured once as a graph and replayed, so the host only launches.

The graph reads everything from buffers that stay where they are: the clients' parameters, the optimiser's slots, the
round's batches and a counter that says which step it is. A round copies its start and its plan in, replays, and copies
the result out; nothing in between waits for the device.

Clients run out of batches at different times. Steps concern the leading clients that still have some, rounded up to one
of a few sizes so that few graphs are needed; what the rounding trained too far is put back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.stack.batch_plan import BatchPlan
from winnow.learn.stack.execution_interface import Batch, CohortGradients, Execution
from winnow.learn.stack.flat_client_data import TensorData
from winnow.learn.stack.local_training_start import GradientCorrection, LocalStart

COHORT_SIZE_STEPS = 8
"""Into so many sizes the number of clients still at work is rounded up."""

WARM_UP_STEPS = 3
"""What CUDA wants to see of a program before it is captured."""


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """What a captured step depends on besides the buffers."""

    clients: int
    padded: bool


class BindCompiled(Protocol):
    """Compiles the step of a cohort for batches of one shape; see `StackedExecution.bind_compiled`."""

    def __call__(self, trained: list[Tensor], carried: list[Tensor], batch: Batch) -> CohortGradients: ...


class CudaGraphTraining:
    """The buffers and graphs of one cohort size and one optimiser.

    Graphs of an earlier cohort lend them their memory: only one of them runs at a time. If steps are to be compiled,
    those of the whole cohort with full batches are, which is most of them.
    """

    def __init__(
        self,
        execution: Execution,
        data: TensorData,
        local: LocalOptimiser,
        local_start: LocalStart,
        plan: BatchPlan,
        earlier: "CudaGraphTraining | None" = None,
        bind_compiled: BindCompiled | None = None,
    ) -> None:
        steps, clients, width = plan.rows.shape
        self._execution, self._data, self._local, self._bind_compiled = execution, data, local, bind_compiled
        self._capacity = steps
        self.states = local_start.stacked(clients)
        self._trained = [self.states[name] for name in execution.layout.trained]
        self._carried = [self.states[name] for name in execution.layout.carried]
        self._trainable_names, self._places = (
            local_start.trainable,
            local_start.trainable_indices(execution.layout.trained),
        )
        self.slots = local_start.optimiser_state(local, self._names(), self._trainable())
        self._correction = GradientCorrection.of(local_start, execution.layout.trained, clients)
        like = self._trained[0]
        self._rows = torch.zeros(steps, clients, width, dtype=torch.int64, device=like.device)
        self._weights = like.new_zeros(steps, clients, width)
        self._losses = like.new_zeros(steps, clients, width)
        self._step = torch.zeros(1, dtype=torch.int64, device=like.device)
        self._rate = torch.zeros((), dtype=torch.float32, device=like.device)
        self._graphs: dict[_Shape, torch.cuda.CUDAGraph] = {}
        self._pool: Any = earlier._pool if earlier else torch.cuda.graph_pool_handle()

    def fits(self, data: TensorData, local: LocalOptimiser, local_start: LocalStart, plan: BatchPlan) -> bool:
        """Whether these graphs can run that: same samples, optimiser, terms and cohort, no more steps."""
        steps, clients, width = plan.rows.shape
        mine = self._correction
        terms = (mine.proximal_weight, bool(mine.gradient_offset)) if mine else (0.0, False)
        return (
            (local, local_start.trainable, local_start.proximal_weight, local_start.gradient_offset is not None)
            == (self._local, self._trainable_names, *terms)
            and data.x is self._data.x
            and steps <= self._capacity
            and (clients, width) == tuple(self._rows.shape[1:])
        )

    def run(self, local_start: LocalStart, plan: BatchPlan, rate: float) -> Tensor:
        """Train the cohort in place; the losses of all samples [S, K, B]."""
        segments = self._segments(plan)
        for shape, _, _ in segments:
            if shape not in self._graphs:
                self._graphs[shape] = self._capture(shape)
        self._load(local_start, plan, rate)
        for shape, active, steps in segments:
            too_far = slice(active, shape.clients)
            kept = [tensor[too_far].clone() for tensor in self._everything()]
            for _ in steps:
                self._graphs[shape].replay()
            for tensor, saved in zip(self._everything(), kept, strict=True):
                tensor[too_far].copy_(saved)
        self._local.finish(self._trainable(), self.slots)
        return self._losses[: len(plan.rows)]

    def _segments(self, plan: BatchPlan) -> list[tuple[_Shape, int, range]]:
        """Stretches of steps that one graph serves: (shape, clients really at work, steps)."""
        clients, width = plan.rows.shape[1:]
        stride = -(-clients // COHORT_SIZE_STEPS)
        padded = ((plan.sizes > 0) & (plan.sizes < width)).any(1)
        result = []
        for active, _, steps in plan.segments():
            size = min(clients, -(-active // stride) * stride)
            changes = np.flatnonzero(np.diff(padded[steps.start : steps.stop])) + 1 + steps.start
            for first, end in pairwise([steps.start, *changes.tolist(), steps.stop]):
                result.append((_Shape(clients=size, padded=bool(padded[first])), active, range(first, end)))
        return result

    def _load(self, local_start: LocalStart, plan: BatchPlan, rate: float) -> None:
        for name, tensor in self.states.items():
            tensor.copy_(local_start.states[name].expand_as(tensor))
        fresh = local_start.optimiser_state(self._local, self._names(), self._trainable())
        for slots, start in zip(self.slots, fresh, strict=True):
            torch._foreach_copy_(slots, start)
        self._load_correction(local_start)
        steps = len(plan.rows)
        self._rows[:steps].copy_(torch.from_numpy(np.maximum(plan.rows, 0)), non_blocking=True)
        self._weights[:steps].copy_(torch.from_numpy(plan.weights()), non_blocking=True)
        self._step.zero_()
        self._rate.fill_(rate)

    def _load_correction(self, local_start: LocalStart) -> None:
        given = GradientCorrection.of(local_start, self._execution.layout.trained, self._rows.shape[1])
        if given is None or self._correction is None:
            return
        own = self._correction
        for buffer, values in zip(
            [*own.anchor, *own.gradient_offset], [*given.anchor, *given.gradient_offset], strict=True
        ):
            buffer.copy_(values)

    def _everything(self) -> list[Tensor]:
        return [*self._trained, *self._carried, *(tensor for slots in self.slots for tensor in slots)]

    def _names(self) -> tuple[str, ...]:
        return tuple(self._execution.layout.trained[place] for place in self._places)

    def _trainable(self) -> list[Tensor]:
        return [self._trained[place] for place in self._places]

    def _capture(self, shape: _Shape) -> torch.cuda.CUDAGraph:
        """A step as a graph. It uses up none of the round's noise: a resumed run captures anew, and must not differ."""
        device = self._step.device
        with torch.random.fork_rng([device], device_type="cuda"):
            step = self._stepper(shape)
            self._warm_up(step)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                step()
        return graph

    def _warm_up(self, step: Callable[[], None]) -> None:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves its constructor untyped
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP_STEPS):
                self._step.zero_()
                step()
        torch.cuda.current_stream().wait_stream(side)

    def _bind(self, shape: _Shape, parameters: list[Tensor], buffers: list[Tensor]) -> CohortGradients:
        clients, width = self._rows.shape[1:]
        if self._bind_compiled is None or shape.padded or shape.clients < clients:
            return self._execution.bind_cohort(parameters, buffers)
        rows = torch.arange(clients * width, device=self._rows.device) % len(self._data.x)
        x, y = self._data.x.index_select(0, rows), self._data.y.index_select(0, rows)
        weight = self._weights.new_full((clients, width), 1 / width)
        return self._bind_compiled(parameters, buffers, Batch(x, y, weight, np.full(clients, width), full=True))

    def _stepper(self, shape: _Shape) -> Callable[[], None]:
        """One step of the leading clients, with everything it reads and writes in the buffers."""
        some = slice(shape.clients)
        parameters, buffers = [t[some] for t in self._trained], [t[some] for t in self._carried]
        moved, places = [parameters[place] for place in self._places], self._places
        slots = [[tensor[some] for tensor in slots] for slots in self.slots]
        cohort = self._bind(shape, parameters, buffers)
        added = self._correction and self._correction.leading_clients(shape.clients)
        sizes = np.zeros(shape.clients, np.int64)

        def step() -> None:
            rows = self._rows.index_select(0, self._step)[0, some].flatten()
            weight = self._weights.index_select(0, self._step)[0, some]
            x, y = self._data.x.index_select(0, rows), self._data.y.index_select(0, rows)
            gradients, losses = cohort.gradients(Batch(x, y, weight, sizes, full=not shape.padded))
            self._losses[:, some].index_copy_(0, self._step, losses.unsqueeze(0))
            self._step.add_(1)
            slopes = [gradients[place] for place in places]
            if added:
                added.add_to(slopes, moved)
            self._local.step(moved, slopes, slots, number=self._step, rate=self._rate)

        return step
