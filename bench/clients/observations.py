"""What one training run shows to whoever judges its clients: Winnow itself, and the rules it is compared with."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from winnow.core import Federation, Reply
from winnow.learn.collect import RoundResult
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.stack import Execution, ModelState
from winnow.learn.training_workflow import TrainingWorkflow


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundObservation:
    """One round as it was aggregated. A reply's task has the model that the client started from."""

    start: ModelState
    replies: Sequence[Reply]
    weights: Mapping[int, float]
    """By client."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunObservations:
    """A whole run, and the samples of everybody, as only a simulation has them."""

    rounds: Sequence[RoundObservation]
    final: ModelState
    clients: Sequence[tuple[Tensor, Tensor]]
    """Each client's x and y."""
    reference: tuple[Tensor, Tensor]
    execution: Execution
    evaluator: ModelEvaluator
    """With the layer that profiles are made of."""
    trained: tuple[str, ...]
    seed: int


@contextmanager
def recorded_rounds(training: TrainingWorkflow) -> Iterator[list[RoundObservation]]:
    """The rounds that a workflow makes in this context; updates are weighted by the clients' sizes."""
    rounds: list[RoundObservation] = []
    apply = training.apply

    def noting(gathered: RoundResult, federation: Federation, later: Sequence[Reply] = ()) -> RoundResult:
        start = training.shared
        gathered = apply(gathered, federation, later)
        weights = {
            reply.task.client: float(federation.population.sizes[reply.task.client]) for reply in gathered.aggregated
        }
        rounds.append(RoundObservation(start=start, replies=gathered.aggregated, weights=weights))
        return gathered

    training.apply = noting
    try:
        yield rounds
    finally:
        training.apply = apply
