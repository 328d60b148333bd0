"""What the server does with an aggregate before it becomes the next global model."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from torch import Tensor

from winnow.core import Choice, Payload, Reply
from winnow.learn.algorithm_part import AlgorithmPart
from winnow.learn.stack import ModelState


@dataclass(frozen=True, kw_only=True)
class RoundAggregate:
    """What a round's replies amount to: the aggregated model, the mean of every other part, and of how many clients."""

    model: ModelState
    clients: int
    population: int
    trained_names: tuple[str, ...]
    """The names of what clients train; the rest of a model (batch statistics) has no gradient to take a step along."""
    parts: Mapping[str, ModelState] = field(default_factory=dict)
    teach: "Teach | None" = None
    """Trains a model on samples that the server has itself; None where it has none to train on."""
    replies: Sequence[Reply] = ()
    """The replies that were aggregated, for a server that `sees_updates`."""
    target: "Features | None" = None
    """What a model makes of samples of the target domain, for a server that `needs_target`."""
    distil: "Distil | None" = None
    """Trains a model on the open samples; None where there are none."""
    round: int = 0
    """Its number."""


class Teach(Protocol):
    def __call__(
        self, model: ModelState, *, epochs: int, batch_size: int | None, clip: float, rate_factor: float = 1.0
    ) -> ModelState:
        """The model after so many epochs on the server's labelled samples, by the optimiser that clients use; gradients
        are bounded to a norm, and steps are so many times as long.
        """


class Features(Protocol):
    @property
    def classes(self) -> int: ...

    def __call__(self, model: ModelState) -> Tensor:
        """The input of a model's last layer for samples of the server's, [n, width]."""


class Distil(Protocol):
    def __call__(self, model: ModelState, targets: Tensor, *, epochs: int) -> ModelState:
        """The model after so many epochs on the round's open samples, towards these probabilities, [rows, classes]."""


class ServerOptimiser(Choice, AlgorithmPart):
    """A server optimiser: explicit state, and a step from the present model towards the aggregate."""

    teaches: ClassVar[bool] = False
    """Whether it trains on samples of its own, and so takes a step even where no client has replied."""
    sees_updates: ClassVar[bool] = False
    """Whether single replies are looked at, so that sums of them will not do."""
    needs_target: ClassVar[bool] = False
    """Whether it looks at the features of target samples: the reference set without its labels."""
    download_factor: ClassVar[float] = 1.0
    """How many models a task weighs, with what `broadcast` adds."""

    def start(self, trained: ModelState) -> ModelState:
        """The state before the first round, for the tensors that are trained; it is part of every checkpoint."""
        return {}

    @abstractmethod
    def step(self, state: ModelState, model: ModelState, aggregate: RoundAggregate) -> tuple[ModelState, ModelState]:
        """(state, model) after a step towards the aggregate."""

    def broadcast(self, state: ModelState) -> Payload:
        """Parts of the state that go out with every task, beside the model."""
        return {}


class ReplaceModel(ServerOptimiser):
    """The aggregate is the new model."""

    name: Literal["replace"] = "replace"

    def step(self, state: ModelState, model: ModelState, aggregate: RoundAggregate) -> tuple[ModelState, ModelState]:
        return state, aggregate.model
