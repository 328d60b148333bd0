"""When a model is brought up to date: round by round, or in another rhythm.

A `Schedule` drives a training run through its steps (`begin`, `announce`, `apply`, `finish`) until its rounds are done.
A round is whatever ends with a new version of the model.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from winnow.core import AnyEvent, Choice, Federation
from winnow.learn.algorithm_part import AlgorithmPart
from winnow.learn.selection import Selection

if TYPE_CHECKING:
    from winnow.learn.training import TrainingWorkflow


class Schedule(Choice, AlgorithmPart):
    """A rhythm of invitations, arrivals and new versions."""

    @property
    def min_training_clients(self) -> int:
        """How many clients must be at work for a new version to come about as it was asked for."""
        return 1

    def together(self, invited: int, clients: int) -> int:
        """How many of all clients may train at a time where the selection invites so many."""
        return invited

    @abstractmethod
    def run(self, training: "TrainingWorkflow", selection: Selection, federation: Federation) -> Iterator[AnyEvent]:
        """Drive the training to its end, from wherever it stands."""


class SynchronousRounds(Schedule):
    """Select, collect, aggregate, evaluate; then the next round (FedProf's algorithm 2)."""

    name: Literal["rounds"] = "rounds"

    def run(self, training: "TrainingWorkflow", selection: Selection, federation: Federation) -> Iterator[AnyEvent]:
        return training.run_rounds(selection, federation)
