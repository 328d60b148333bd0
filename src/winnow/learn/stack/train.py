"""A round of local training for a whole cohort of clients."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from winnow.core import Payload, Randomness, derive
from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.stack.batch_plan import BatchPlan, phase_stream_name, plan_batches
from winnow.learn.stack.execution_interface import (
    Batch,
    Execution,
    GradientFunction,
    GradientRule,
    PlanResult,
    min_batch_size,
)
from winnow.learn.stack.flat_client_data import Indices, TensorData
from winnow.learn.stack.frozen_prefix import find_trainable_suffix
from winnow.learn.stack.local_training_start import GradientCorrection, LocalStart, expand_to_clients
from winnow.learn.stack.trainable_state import ModelState, take_clients
from winnow.learn.stack.user_training_execution import WholeLoopExecution
from winnow.learn.stack.user_training_functions import OwnBatches, TrainContext


@dataclass(frozen=True, kw_only=True)
class CohortTrainingResult:
    """What K clients made of the model they were given, in the order in which they were asked.

    The loss is a client's mean over the samples of its last epoch, or over all of its steps; NaN if it had no batch.
    """

    states: ModelState  # stacked, [K, ...]
    loss: Tensor  # [K]
    steps: Tensor  # [K]
    slots: tuple[ModelState, ...] = ()
    """The optimiser's own tensors at the end, [K, ...], where the method said where they start."""


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """One round at K clients: what they were sent, what they have kept, and how they train."""

    execution: Execution
    data: TensorData
    clients: Indices
    local: LocalOptimiser
    round: int
    seed: int
    randomness: Randomness
    """For noise; the order of batches follows from the seed alone."""
    sent: Payload
    stored: Sequence[Payload]

    @property
    def model(self) -> ModelState:
        """The global model, [1, ...]."""
        return self.received_part("model")

    @property
    def rate(self) -> float:
        return self.local.rate(self.round)

    @property
    def trained(self) -> tuple[str, ...]:
        """The names of what is trained; the rest of a model is carried along (batch statistics)."""
        return self.execution.layout.trained

    def received_part(self, part: str) -> ModelState:
        """A part that came with the task, [1, ...]."""
        return {name: tensor.unsqueeze(0) for name, tensor in self.sent[part].items()}

    def stored_part(self, part: str, otherwise: ModelState) -> ModelState:
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
        proximal_weight: float = 0.0,
        anchor: ModelState | None = None,
        gradient_offset: ModelState | None = None,
        trainable: frozenset[str] | None = None,
        epochs: int | None = None,
        phase: int = 0,
        gradient_rule: GradientRule | None = None,
        slots: tuple[ModelState, ...] = (),
    ) -> CohortTrainingResult:
        """Train every client from the global model, or from another start; see `LocalStart` for the terms.

        With `trainable` only these names are trained: if the first layers stand still, only the others are trained, on
        what the first make of the samples. `epochs` replaces the length of a training that is set for all. A second
        training of the same round sees its batches in an order of its own if it is another `phase`. Steps follow the
        gradient, or a `gradient_rule` of the method's own, whose further batches are those of the phases that follow.
        With `slots` the optimiser's own tensors start there, and what becomes of them is in the result.

        A model with batch normalisation skips batches of a single sample (a client's only one, or the last of an
        epoch), which have no variance. Everything but dropout's noise is independent of who else is in the cohort.
        """
        states = self.model if start is None else start
        if isinstance(self.execution, WholeLoopExecution):
            return self._own_loop(self.execution, states, epochs, phase)
        whole = LocalStart(
            states=states,
            proximal_weight=proximal_weight,
            anchor=anchor,
            gradient_offset=gradient_offset,
            trainable=trainable,
            slots=slots,
        )
        splits = gradient_rule is None and not slots
        suffix = find_trainable_suffix(self.execution, whole, self.data) if splits else None
        execution, begin, data = (
            (self.execution, whole, self.data)
            if suffix is None
            else (suffix.execution, suffix.local_start(whole), suffix.prefix_features(whole, self.data, self.clients))
        )
        local = self.local if epochs is None else self.local.with_epochs(epochs)
        smallest = min_batch_size(execution.module)
        plan, *further = (
            plan_batches(data, self.clients, local, round=self.round, seed=self.seed, smallest=smallest, phase=each)
            for each in range(phase, phase + (gradient_rule.batches if gradient_rule else 1))
        )
        with _own_noise(self._dropout_seed(phase), data.x.device):
            begin = begin.ordered(torch.from_numpy(plan.order).to(data.x.device))
            rate = local.rate(self.round)
            done = execution.run_plan(begin, local, data, plan, rate=rate) if gradient_rule is None else None
            ended = done or _step_by_step(
                execution,
                begin,
                local,
                data,
                plan,
                rate=rate,
                gradient_rule=gradient_rule,
                further=[other.rows for other in further],
            )
        back = torch.from_numpy(np.argsort(plan.order)).to(data.x.device)
        layout = execution.layout
        moved = [layout.trained[place] for place in begin.trainable_indices(layout.trained)]
        trained = take_clients({name: ended.states[layout.aliases.get(name, name)] for name in layout.names}, back)
        return CohortTrainingResult(
            states=trained if suffix is None else suffix.full_states(whole, trained, len(self.clients)),
            loss=_mean_loss(ended.losses, plan).index_select(0, back),
            steps=torch.from_numpy((plan.sizes > 0).sum(0)).to(data.x.device).index_select(0, back),
            slots=tuple(take_clients(dict(zip(moved, slot, strict=True)), back) for slot in ended.slots if slots),
        )

    def _own_loop(
        self, execution: WholeLoopExecution, start: ModelState, epochs: int | None, phase: int
    ) -> CohortTrainingResult:
        """Every client trained by a loop of the user's own, from [1, ...] or [K, ...]."""
        local = self.local if epochs is None else self.local.with_epochs(epochs)
        smallest = min_batch_size(execution.module)
        plan = plan_batches(
            self.data, self.clients, local, round=self.round, seed=self.seed, smallest=smallest, phase=phase
        )
        count, device = len(self.clients), self.data.device
        states = {name: expand_to_clients(tensor, count).clone() for name, tensor in start.items()}
        losses, steps = torch.full((count,), torch.nan, device=device), torch.zeros(count, device=device).long()
        for place, position in enumerate(plan.order.tolist()):
            client = int(self.clients[position])
            batches = OwnBatches(execution.module, self.data, plan.rows[:, place], plan.sizes[:, place])
            if not len(batches):
                continue
            context = TrainContext(round=self.round, rate=local.rate(self.round), client=client, device=device)
            with _own_noise(self._dropout_seed(phase, client), device):
                own = {name: tensor[position] for name, tensor in states.items()}
                trained, losses[position] = execution.train_client(own, batches, context)
            steps[position] = batches.taken
            for name, tensor in trained.items():
                states[name][position] = tensor
        return CohortTrainingResult(states=states, loss=losses, steps=steps)

    def _dropout_seed(self, phase: int, client: int | None = None) -> int:
        """Of the cohort or, where clients are trained one after another, of one client."""
        first = self.clients[:1].tolist() if client is None else [client]
        return derive(self.seed, "dropout", self.round, *first, *phase_stream_name(phase))


@torch.no_grad()
def _step_by_step(
    execution: Execution,
    local_start: LocalStart,
    local: LocalOptimiser,
    data: TensorData,
    plan: BatchPlan,
    *,
    rate: float,
    gradient_rule: GradientRule | None,
    further: Sequence[Indices],
) -> PlanResult:
    """The clients after all steps.

    `further` are the rows of a gradient rule's other batches, which are as large as the plan's own.
    """
    states = local_start.stacked(len(plan.order))
    trained = [states[name] for name in execution.layout.trained]
    carried = [states[name] for name in execution.layout.carried]
    places = local_start.trainable_indices(execution.layout.trained)
    trainable = [trained[place] for place in places]
    names = tuple(execution.layout.trained[place] for place in places)
    all_slots = local_start.optimiser_state(local, names, trainable)
    groups = [trained, carried, trainable, *all_slots]
    correction = GradientCorrection.of(local_start, execution.layout.trained, len(plan.order))
    rows = torch.from_numpy(np.stack([plan.rows, *further], axis=1)).to(data.x.device)
    weights = torch.from_numpy(plan.weights()).to(trained[0])
    losses = torch.zeros_like(weights)
    alone = execution.name == "loop"
    bound = -1
    for active, width, steps in plan.segments():
        if active != bound:
            parameters, buffers, moved, *slots = ([tensor[:active] for tensor in group] for group in groups)
            cohort, anywhere = execution.bind_cohort(parameters, buffers), _anywhere(execution, buffers)
            added = correction and correction.leading_clients(active)
            if alone:
                moved, slots, added = _apart(moved), [_apart(slot) for slot in slots], added and added.per_client()
            bound = active
        along, part = slice(steps.start, steps.stop), (slice(active), slice(width))
        full = (plan.sizes[along, :active] == width).all(1)
        each = zip(
            steps, rows[along, :, *part].flatten(2), weights[along, *part], losses[along, *part], full, strict=True
        )
        for step, drawn, weight, kept, is_full in each:
            sizes = plan.sizes[step, :active]
            batches = [Batch(*data.samples(chosen), weight, sizes, bool(is_full)) for chosen in drawn]
            gradients, found = (
                gradient_rule(anywhere, parameters, batches) if gradient_rule else cohort.gradients(batches[0])
            )
            kept.copy_(found)
            slopes = [gradients[place] for place in places]
            if alone:
                slopes = _apart(slopes)
            if added:
                added.add_to(slopes, moved)
            local.step(moved, slopes, slots, number=step + 1, rate=rate)
    local.finish(trainable, all_slots)
    return PlanResult(states, losses, all_slots)


def _apart(stacked: list[Tensor]) -> list[Tensor]:
    """Every client's own tensors. What stands last in a tensor is rounded otherwise (in scalar instructions, without
    fused products), so that where clients are trained one by one their steps are taken one by one, too.
    """
    return [own for tensor in stacked for own in tensor]


def _anywhere(execution: Execution, carried: list[Tensor]) -> GradientFunction:
    return lambda parameters, batch: execution.bind_cohort(parameters, carried).gradients(batch)


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
