"""Steps of a method's own: it sees outputs, labelled and unlabelled batches and the number of the step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.core import stream
from winnow.learn.sample_draws import SampleDraws, client_keys
from winnow.learn.stack.batch_plan import ALL_ROWS, Draw
from winnow.learn.stack.changed_samples import Change, ChangedSamples
from winnow.learn.stack.execution_interface import Batch, Execution, min_batch_size
from winnow.learn.stack.flat_client_data import Indices
from winnow.learn.stack.per_sample_losses import Loss
from winnow.learn.stack.trainable_state import ModelState, split_clients

Distribution: TypeAlias = Callable[[np.random.Generator, int], NDArray[np.float64]]
"""So many numbers from a generator, drawn one after another."""


class GradientRule(ABC):
    """Which way a step goes, for methods that do not follow the gradient of one batch."""

    @property
    def draws(self) -> Sequence[Draw]:
        """The batches of each client that a step takes; they are drawn independently of one another."""
        return (ALL_ROWS,)

    @abstractmethod
    def __call__(
        self, at: "StepContext", parameters: list[Tensor], batches: Sequence[Batch]
    ) -> tuple[list[Tensor], Tensor]:
        """The direction, like the parameters, which are left as they are; and the loss of each client to report, [K].

        A client that has no rows of a draw has an empty batch there (`sizes` is 0).
        """

    def after(self, at: "StepContext", parameters: list[Tensor]) -> None:  # noqa: B027  # most have nothing to do
        """Called behind each step of the optimiser, for moving averages in `at.memory`."""


@dataclass(frozen=True, kw_only=True)
class NamedDraws:
    """Random numbers for clients' samples, by the name of what they are for."""

    seed: int
    clients: Indices
    names: tuple[str | int, ...]
    steps: int
    device: torch.device
    _keys: dict[str, Tensor] = field(default_factory=dict)
    _numbers: dict[str, Tensor] = field(default_factory=dict)

    def keys(self, purpose: str) -> Tensor:
        """Of the clients, [K]."""
        if purpose not in self._keys:
            self._keys[purpose] = client_keys(self.seed, self.clients.tolist(), purpose, *self.names).to(self.device)
        return self._keys[purpose]

    def numbers(self, purpose: str, step: int, distribution: Distribution) -> Tensor:
        """A number for each client and this step, [K]."""
        if purpose not in self._numbers:
            drawn = [
                distribution(stream(self.seed, purpose, *self.names, int(client)), self.steps)
                for client in self.clients
            ]
            self._numbers[purpose] = torch.from_numpy(np.stack(drawn, axis=1)).float().to(self.device)
        return self._numbers[purpose][step]


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """One step of K clients, those that still have batches, as a method's own rule sees it."""

    execution: Execution
    carried: list[Tensor]
    memory: ModelState
    """What the rule remembers from step to step, [K, ...]; it changes in place."""
    streams: NamedDraws
    samples: ChangedSamples
    step: int
    """They are numbered from 0."""
    clients: Indices
    """Their numbers."""

    def gradients(
        self, parameters: list[Tensor], batch: Batch, loss: Loss | None = None
    ) -> tuple[list[Tensor], Tensor]:
        """Gradients of Σ weight·loss at any parameters [K, ...] for a batch, and the losses [K, B]. Clients with an
        empty batch have gradient 0.
        """
        present = np.flatnonzero(batch.sizes)
        if len(present) == len(batch.sizes):
            return self.execution.bind_cohort(parameters, self.carried, loss).gradients(batch)
        whole, losses = [torch.zeros_like(tensor) for tensor in parameters], torch.zeros_like(batch.weight)
        if len(present):
            which = torch.from_numpy(present).to(losses.device)
            carried = [tensor.index_select(0, which) for tensor in self.carried]
            cohort = self.execution.bind_cohort([t.index_select(0, which) for t in parameters], carried, loss)
            found, losses[which] = cohort.gradients(_of_clients(batch, which, batch.sizes[present]))
            for tensor, part in zip((*whole, *self.carried), (*found, *carried), strict=True):
                tensor.index_copy_(0, which, part)
        return whole, losses

    def sum_of_gradients(
        self, parameters: list[Tensor], batches: Sequence[tuple[Batch, float]]
    ) -> tuple[list[Tensor], Tensor]:
        """Σ factor·gradient over batches, and the loss of each client, [K], which adds up alike.

        Together if no client's batch is padded, which takes fewer, larger products; not where batch normalisation would
        mix the statistics of different batches.
        """
        if all(batch.full for batch, _ in batches) and min_batch_size(self.execution.module) == 1:
            batches = [(_side_by_side(batches), 1.0)]
        (batch, factor), *others = batches
        total, losses = self.gradients(parameters, batch)
        loss = mean_loss(batch, losses)
        if factor != 1:
            total, loss = list(torch._foreach_mul(total, factor)), factor * loss
        for batch, factor in others:
            gradients, losses = self.gradients(parameters, batch)
            total = list(torch._foreach_add(total, gradients, alpha=factor))
            loss = loss + factor * mean_loss(batch, losses)
        return total, loss

    def outputs(
        self, parameters: list[Tensor], x: Tensor, carried: list[Tensor] | None = None, inside: Tensor | None = None
    ) -> Tensor:
        """The model's outputs, [K·B, ...], in evaluation mode: without dropout, and leaving batch statistics alone.
        Samples that are not `inside` a batch, [K, B], are padding, and their outputs mean nothing.
        """
        clients = len(parameters[0])
        states = self.execution.layout.join(parameters, self.carried if carried is None else carried)
        return self.execution.outputs(states, split_clients(x, clients), inside).flatten(0, 1)

    def draws(self, purpose: str, batch: Batch) -> SampleDraws:
        """Random numbers for the batch's samples. Another purpose or step gives others."""
        clients, width = batch.weight.shape
        return SampleDraws.of_clients(self.streams.keys(purpose)[:clients], width, range(self.step, self.step + 1))

    def changed(self, change: Change, purpose: str, batch: Batch) -> Tensor:
        """The samples of a batch, as it was drawn, changed by `draws` of this purpose, which has one change only."""
        keys = self.streams.keys(purpose)[: len(batch.weight)]
        return self.samples.of_step(change, purpose, keys, batch.draw, self.step)

    def numbers(self, purpose: str, distribution: Distribution) -> Tensor:
        """A random number for each client, [K], from its own stream of this purpose."""
        return self.streams.numbers(purpose, self.step, distribution)[: len(self.clients)]


def mean_loss(batch: Batch, losses: Tensor) -> Tensor:
    """Σ weight·loss of each client, [K], padding left out."""
    counted = batch.weight * losses
    return (counted if batch.full else torch.where(batch.weight > 0, counted, 0)).sum(1)


def _side_by_side(batches: Sequence[tuple[Batch, float]]) -> Batch:
    """One batch of all; weights have the factors in them."""
    each, clients = [batch for batch, _ in batches], len(batches[0][0].weight)
    x, y = (
        torch.cat([split_clients(tensor, clients) for tensor in tensors], 1).flatten(0, 1)
        for tensors in ([batch.x for batch in each], [batch.y for batch in each])
    )
    weight = torch.cat([batch.weight if factor == 1 else factor * batch.weight for batch, factor in batches], 1)
    return Batch(x, y, weight, np.sum([batch.sizes for batch in each], axis=0), full=True)


def _of_clients(batch: Batch, which: Tensor, sizes: Indices) -> Batch:
    """The batches of some clients."""
    clients = len(batch.weight)
    x, y = (split_clients(samples, clients).index_select(0, which).flatten(0, 1) for samples in (batch.x, batch.y))
    return batch._replace(x=x, y=y, weight=batch.weight.index_select(0, which), sizes=sizes)
