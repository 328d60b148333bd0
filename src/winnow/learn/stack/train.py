"""A round of local training for a whole cohort of clients."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from winnow.core import Payload, derive
from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.stack.batch_plan import BatchPlan, phase_stream_name, plan_batches
from winnow.learn.stack.client_tensors import Indices, TensorData
from winnow.learn.stack.execution import Batch, Execution, GradientFunction, GradientRule, min_batch_size
from winnow.learn.stack.frozen_prefix import find_trainable_suffix
from winnow.learn.stack.local_start import GradientCorrection, LocalStart
from winnow.learn.stack.model_states import ModelState, take_clients


@dataclass(frozen=True, kw_only=True)
class CohortTrainingResult:
    """What K clients made of the model they were given, in the order in which they were asked.

    The loss is a client's mean over the samples of its last epoch, or over all of its steps; NaN if it had no batch.
    """

    states: ModelState  # stacked, [K, ...]
    loss: Tensor  # [K]
    steps: Tensor  # [K]


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """One round at K clients: what they were sent, what they have kept, and how they train."""

    execution: Execution
    data: TensorData
    clients: Indices
    local: LocalOptimiser
    round: int
    seed: int
    sent: Payload
    stored: Sequence[Payload]

    @property
    def model(self) -> ModelState:
        """The global model, [1, ...]."""
        return self.received("model")

    @property
    def rate(self) -> float:
        return self.local.rate(self.round)

    @property
    def trained(self) -> tuple[str, ...]:
        """The names of what is trained; the rest of a model is carried along (batch statistics)."""
        return self.execution.layout.trained

    def received(self, part: str) -> ModelState:
        """A part that came with the task, [1, ...]."""
        return {name: tensor.unsqueeze(0) for name, tensor in self.sent[part].items()}

    def kept(self, part: str, otherwise: ModelState) -> ModelState:
        """What each client kept the last time, [K, ...]; clients that are new here have `otherwise`, [1, ...]."""
        rows = [kept.get(part) for kept in self.stored]
        return {
            name: torch.stack([first[0] if row is None else row[name] for row in rows])
            for name, first in otherwise.items()
        }

    def train(
        self,
        start: ModelState | None = None,
        *,
        pull: float = 0.0,
        anchor: ModelState | None = None,
        drift: ModelState | None = None,
        moving: frozenset[str] | None = None,
        epochs: int | None = None,
        phase: int = 0,
        slope: GradientRule | None = None,
    ) -> CohortTrainingResult:
        """Train every client from the global model, or from another start; see `LocalStart` for the terms.

        With `moving` only these names are trained: if the first layers stand still, only the others are trained, on
        what the first make of the samples. `epochs` replaces the length of a training that is set for all. A second
        training of the same round sees its batches in an order of its own if it is another `phase`. Steps follow the
        gradient, or a `slope` of the method's own, whose further batches are those of the phases that follow.

        A model with batch normalisation skips batches of a single sample (a client's only one, or the last of an
        epoch), which have no variance. Everything but dropout's noise is independent of who else is in the cohort.
        """
        states = self.model if start is None else start
        whole = LocalStart(states=states, pull=pull, anchor=anchor, drift=drift, moving=moving)
        suffix = find_trainable_suffix(self.execution, whole, self.data) if slope is None else None
        execution, begin, data = (
            (self.execution, whole, self.data)
            if suffix is None
            else (suffix.execution, suffix.departure(whole), suffix.samples(whole, self.data, self.clients))
        )
        local = self.local if epochs is None else self.local.lasting(epochs)
        smallest = min_batch_size(execution.module)
        plan, *further = (
            plan_batches(data, self.clients, local, round=self.round, seed=self.seed, smallest=smallest, phase=each)
            for each in range(phase, phase + (slope.batches if slope else 1))
        )
        with _own_noise(self._dropout_seed(phase), data.x.device):
            begin = begin.ordered(torch.from_numpy(plan.order).to(data.x.device))
            rate = local.rate(self.round)
            done = execution.run_plan(begin, local, data, plan, rate=rate) if slope is None else None
            stacked, losses = done or _step_by_step(
                execution, begin, local, data, plan, rate=rate, slope=slope, further=[other.rows for other in further]
            )
        back = torch.from_numpy(np.argsort(plan.order)).to(data.x.device)
        layout = execution.layout
        trained = take_clients({name: stacked[layout.aliases.get(name, name)] for name in layout.names}, back)
        return CohortTrainingResult(
            states=trained if suffix is None else suffix.states(whole, trained, len(self.clients)),
            loss=_mean_loss(losses, plan).index_select(0, back),
            steps=torch.from_numpy((plan.sizes > 0).sum(0)).to(data.x.device).index_select(0, back),
        )

    def _dropout_seed(self, phase: int) -> int:
        return derive(self.seed, "dropout", self.round, *self.clients[:1].tolist(), *phase_stream_name(phase))


@torch.no_grad()
def _step_by_step(
    execution: Execution,
    departure: LocalStart,
    local: LocalOptimiser,
    data: TensorData,
    plan: BatchPlan,
    *,
    rate: float,
    slope: GradientRule | None,
    further: Sequence[Indices],
) -> tuple[ModelState, Tensor]:
    """The clients' states after all steps, and the losses of all samples [S, K, B].

    `further` are the rows of a slope's other batches, which are as large as the plan's own.
    """
    states = departure.stacked(len(plan.order))
    trained = [states[name] for name in execution.layout.trained]
    carried = [states[name] for name in execution.layout.carried]
    places = departure.places(execution.layout.trained)
    moving = [trained[place] for place in places]
    groups = [trained, carried, moving, *local.slots(moving)]
    correction = GradientCorrection.of(departure, execution.layout.trained, len(plan.order))
    rows = torch.from_numpy(np.stack([plan.rows, *further], axis=1)).to(data.x.device)
    weights = torch.from_numpy(plan.weights()).to(trained[0])
    losses = torch.zeros_like(weights)
    alone = execution.name == "loop"
    bound = -1
    for active, width, steps in plan.segments():
        if active != bound:
            parameters, buffers, moved, *slots = ([tensor[:active] for tensor in group] for group in groups)
            cohort, anywhere = execution.cohort(parameters, buffers), _anywhere(execution, buffers)
            added = correction and correction.some(active)
            if alone:
                moved, slots, added = _apart(moved), [_apart(slot) for slot in slots], added and added.apart()
            bound = active
        along, part = slice(steps.start, steps.stop), (slice(active), slice(width))
        full = (plan.sizes[along, :active] == width).all(1)
        each = zip(
            steps, rows[along, :, *part].flatten(2), weights[along, *part], losses[along, *part], full, strict=True
        )
        for step, drawn, weight, kept, is_full in each:
            sizes = plan.sizes[step, :active]
            batches = [Batch(*data.samples(chosen), weight, sizes, bool(is_full)) for chosen in drawn]
            gradients, found = slope(anywhere, parameters, batches) if slope else cohort.gradients(batches[0])
            kept.copy_(found)
            slopes = [gradients[place] for place in places]
            if alone:
                slopes = _apart(slopes)
            if added:
                added.add_to(slopes, moved)
            local.step(moved, slopes, slots, number=step + 1, rate=rate)
    return states, losses


def _apart(stacked: list[Tensor]) -> list[Tensor]:
    """Every client's own tensors. What stands last in a tensor is rounded otherwise (in scalar instructions, without
    fused products), so that where clients are trained one by one their steps are taken one by one, too.
    """
    return [own for tensor in stacked for own in tensor]


def _anywhere(execution: Execution, carried: list[Tensor]) -> GradientFunction:
    return lambda parameters, batch: execution.cohort(parameters, carried).gradients(batch)


def _mean_loss(losses: Tensor, plan: BatchPlan) -> Tensor:
    """Added up one after another, so that the padding which others in the cohort bring changes nothing."""
    inside = np.arange(plan.rows.shape[2]) < plan.sizes[:, :, None]
    counted = torch.from_numpy(inside & plan.reported[:, :, None]).to(losses.device)
    own = torch.where(counted, losses, 0).transpose(0, 1).flatten(1).double()
    total = functional.pad(own, (1, 0)).cumsum(1)[:, -1]
    return (total / counted.sum((0, 2))).to(losses.dtype)


@contextmanager
def _own_noise(seed: int, device: torch.device) -> Iterator[None]:
    """Dropout draws from a stream of its own and leaves torch's generator as it was."""
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        torch.manual_seed(seed % 2**63)
        yield
