"""What a client does in a round, around local training.

A `ClientUpdate` is written once for K clients: tensors have a leading dimension of clients, or of 1 where all share
them. It trains through `job.train`, as often and from wherever it likes, and returns what is sent and what is kept.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from winnow.core import Choice, Payload, Randomness
from winnow.learn.algorithm_part import AlgorithmPart
from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.stack import (
    CohortTrainingResult,
    Execution,
    GradientRule,
    LocalStart,
    ModelState,
    TensorData,
    train,
)

FINE_TUNING_PHASE = -1
"""The phase of tuning: its batches are in an order of their own."""


@dataclass(frozen=True, kw_only=True)
class LocalResult:
    """What K clients send (the model, and other parts if the method has any) and what they keep for the next time."""

    model: ModelState
    trained: CohortTrainingResult
    """The training whose loss and number of steps are reported."""
    parts: Mapping[str, ModelState] = field(default_factory=dict)
    keep: Mapping[str, ModelState] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """One round at K clients: what they were sent, what they have kept, and how they train."""

    execution: Execution
    data: TensorData
    clients: NDArray[np.int64]
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
    ) -> CohortTrainingResult:
        """Local training from the global model, or from another start; see `LocalStart` for the terms.

        With `trainable` only these names are trained. `epochs` replaces the length of a training that is set for all. A
        second training of the same round sees its batches in an order of its own if it is another `phase`. Steps follow
        the gradient, or a `gradient_rule` of the method's own.
        """
        states = self.model if start is None else start
        local_start = LocalStart(
            states=states,
            proximal_weight=proximal_weight,
            anchor=anchor,
            gradient_offset=gradient_offset,
            trainable=trainable,
        )
        local = self.local if epochs is None else self.local.with_epochs(epochs)
        return train(
            self.execution,
            local_start,
            local,
            self.data,
            self.clients,
            round=self.round,
            seed=self.seed,
            phase=phase,
            gradient_rule=gradient_rule,
        )


class ClientUpdate(Choice, AlgorithmPart):
    """A method at the client. How many trainings it takes and how many models its reply weighs is said here."""

    training_factor: ClassVar[float] = 1.0
    upload_factor: ClassVar[float] = 1.0
    extra_parts: ClassVar[tuple[str, ...]] = ()
    """The names of the parts that go out beside the model; a reply without one of them is refused."""

    @abstractmethod
    def update(self, job: LocalTraining) -> LocalResult: ...

    def extra_part_shapes(self, model: ModelState) -> Payload:
        """What each of those parts looks like, unless the server sends it out itself under the same name: a reply with
        other names, shapes or types is refused.
        """
        return {}

    def passes(self, local: LocalOptimiser, samples: int) -> float:
        """How often a client with so many samples goes over its data in a round."""
        return self.training_factor * local.passes(samples)

    def private_names(self, module: nn.Module) -> frozenset[str]:
        """The entries of a model's state that stay with each client and are never sent."""
        return frozenset()

    def notice(self, module: nn.Module) -> str:
        """What a user should know about this method on this model; empty where there is nothing."""
        return ""

    def personal_model(self, model: ModelState, kept: Payload) -> ModelState:
        """The model that a client uses itself, given the global one and what the client has kept."""
        return model

    def fine_tune(self, job: LocalTraining, start: ModelState, epochs: int) -> ModelState:
        """What clients make of a model for themselves, to be judged: their private part is trained, or else all."""
        private = self.private_names(job.execution.module)
        return job.train(start, trainable=private or None, epochs=epochs, phase=FINE_TUNING_PHASE).states


class PlainUpdate(ClientUpdate):
    """Local training, and nothing else."""

    name: Literal["plain"] = "plain"

    def update(self, job: LocalTraining) -> LocalResult:
        trained = job.train()
        return LocalResult(model=trained.states, trained=trained)
