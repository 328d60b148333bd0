"""A round of local training for a whole cohort of clients."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from winnow.core import Payload, Randomness, derive
from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.stack.batch_plan import ALL_ROWS, phase_stream_name, plan_batches, plan_draws
from winnow.learn.stack.execution_interface import Execution, min_batch_size
from winnow.learn.stack.flat_client_data import BLOCK_BYTES, Indices, TensorData
from winnow.learn.stack.frozen_prefix import find_trainable_suffix
from winnow.learn.stack.gradient_rule import GradientRule, NamedDraws
from winnow.learn.stack.local_training_start import LocalStart, expand_to_clients
from winnow.learn.stack.step_by_step import follow_gradients, follow_rule, ordered_memory
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
    memory: ModelState = field(default_factory=dict)
    """What a method's own gradient rule remembers, [K, ...]."""


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
    open: Tensor | None = None
    """Samples without labels that everybody has."""

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
        memory: ModelState | None = None,
        slots: tuple[ModelState, ...] = (),
    ) -> CohortTrainingResult:
        """Train every client from the global model, or from another start; see `LocalStart` for the terms.

        With `trainable` only these names are trained: if the first layers stand still, only the others are trained, on
        what the first make of the samples. `epochs` replaces the length of a training that is set for all. A second
        training of the same round sees its batches in an order of its own if it is another `phase`. Steps follow the
        gradient, or a `gradient_rule` of the method's own, whose further batches are those of the phases that follow,
        and whose `memory` starts here, [K, ...] or [1, ...].
        With `slots` the optimiser's own tensors start there. What becomes of both is in the result.

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
        draws = (ALL_ROWS,) if gradient_rule is None else gradient_rule.draws
        plans = plan_draws(
            data, self.clients, local, draws, round=self.round, seed=self.seed, smallest=smallest, phase=phase
        )
        plan, *_ = plans
        device = data.x.device
        with _own_noise(self._dropout_seed(phase), device):
            begin = begin.ordered(order := torch.from_numpy(plan.order).to(device))
            rate = local.rate(self.round)
            if gradient_rule is None:
                done = execution.run_plan(begin, local, data, plan, rate=rate)
                ended = done or follow_gradients(execution, begin, local, data, plan, rate)
            else:
                streams = NamedDraws(
                    seed=self.seed,
                    clients=self.clients[plan.order],
                    names=(self.round, *phase_stream_name(phase)),
                    steps=len(plan.rows),
                    device=device,
                )
                remembered = ordered_memory(memory or {}, order)
                ended = follow_rule(execution, begin, local, data, plans, rate, gradient_rule, remembered, streams)
        back = torch.from_numpy(np.argsort(plan.order)).to(data.x.device)
        counted = plan.counted_samples() if gradient_rule is None else plan.reported[:, :, None]
        layout = execution.layout
        moved = [layout.trained[place] for place in begin.trainable_indices(layout.trained)]
        trained = take_clients({name: ended.states[layout.aliases.get(name, name)] for name in layout.names}, back)
        return CohortTrainingResult(
            states=trained if suffix is None else suffix.full_states(whole, trained, len(self.clients)),
            loss=_mean_loss(ended.losses, counted).index_select(0, back),
            steps=torch.from_numpy(plan.steps).to(device).index_select(0, back),
            slots=tuple(take_clients(dict(zip(moved, slot, strict=True)), back) for slot in ended.slots if slots),
            memory=take_clients(ended.memory, back),
        )

    def outputs(self, rows: Indices) -> Tensor:
        """The global model's outputs for rows of the data, [n, ...], in evaluation mode."""
        model, together = self.model, max(1, BLOCK_BYTES // self.data.x[:1].nbytes)
        blocks = torch.split(torch.as_tensor(rows).to(self.data.device), together)
        return torch.cat([self.execution.outputs(model, self.data.x[block].unsqueeze(0))[0] for block in blocks])

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


def _mean_loss(losses: Tensor, counted: NDArray[np.bool_]) -> Tensor:
    """[S, K, B] -> [K]. Added up one after another, so that the padding which others in the cohort bring changes
    nothing.
    """
    inside = torch.from_numpy(counted).to(losses.device)
    own = torch.where(inside, losses, 0).transpose(0, 1).flatten(1).double()
    total = functional.pad(own, (1, 0)).cumsum(1)[:, -1]
    return (total / inside.sum((0, 2))).to(losses.dtype)


@contextmanager
def _own_noise(seed: int, device: torch.device) -> Iterator[None]:
    """Dropout draws from a stream of its own and leaves torch's generator as it was."""
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        torch.manual_seed(seed % 2**63)
        yield
