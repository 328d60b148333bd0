"""When a new version of the model is made: after synchronous rounds, or otherwise.

A `Schedule` drives a training run through its steps (`begin`, `announce`, `apply`, `observe`, `finish`) until its
rounds are done. A round is whatever ends with a new version of the model.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from winnow.core import AnyEvent, Choice, Federation
from winnow.learn.algorithm_part import AlgorithmPart
from winnow.learn.selection import Selection

if TYPE_CHECKING:
    from winnow.learn.training_workflow import TrainingWorkflow


class Schedule(Choice, AlgorithmPart):
    """When clients are selected and new versions are made."""

    policies: ClassVar[frozenset[str]] = frozenset({"exclude"})
    """What it can do, besides warn, with clients whose data are bad (`quality.policy`)."""

    @property
    def min_training_clients(self) -> int:
        """How many clients must be training for a new version to be made."""
        return 1

    def together(self, cohort: int, clients: int) -> int:
        """How many of all clients may train at a time, given the size of a cohort."""
        return cohort

    @abstractmethod
    def run(self, training: "TrainingWorkflow", selection: Selection, federation: Federation) -> Iterator[AnyEvent]:
        """Drive the training to its end, from wherever it stands."""


class SynchronousRounds(Schedule):
    """Select, collect, aggregate, evaluate; then the next round (FedProf's algorithm 2)."""

    name: Literal["rounds"] = "rounds"
    policies: ClassVar[frozenset[str]] = frozenset({"exclude", "down-weight"})

    def run(self, training: "TrainingWorkflow", selection: Selection, federation: Federation) -> Iterator[AnyEvent]:
        while training.round < training.rounds:
            context = training.begin(federation)
            selected = selection.propose(context)
            yield from training.announce(selected, federation)
            gathered = training.algorithm.collect.gather(federation, training.round_context(selected, federation))
            gathered = training.apply(gathered, federation)
            training.observe(selection, context, gathered.reported)
            yield from training.finish(gathered, selection, federation)
