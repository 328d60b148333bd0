"""What the server does with an aggregate before it becomes the next global model."""

from abc import abstractmethod
from typing import Literal

from winnow.core import Choice
from winnow.learn.stack import ModelState


class ServerStep(Choice):
    """A server optimiser: explicit state, and a step from the present model towards the aggregate."""

    def start(self, model: ModelState) -> ModelState:
        """The state before the first round; it is part of every checkpoint."""
        return {}

    @abstractmethod
    def step(self, state: ModelState, model: ModelState, aggregate: ModelState) -> tuple[ModelState, ModelState]:
        """(state, model) after folding in the aggregate."""


class Replace(ServerStep):
    """The aggregate is the new model."""

    name: Literal["replace"] = "replace"

    def step(self, state: ModelState, model: ModelState, aggregate: ModelState) -> tuple[ModelState, ModelState]:
        return state, aggregate
