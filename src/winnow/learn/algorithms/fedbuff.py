"""FedBuff (Nguyen et al., 2022): clients train all the time, and every few replies make a new version of the model."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Literal

import numpy as np
from msgspec.structs import replace
from pydantic import Field

from winnow.core import AnyEvent, Federation, Outcome, Reply
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Algorithm, Recipe
from winnow.learn.async_tasks_in_flight import PendingTasks
from winnow.learn.collect import RoundResult, fold_finite
from winnow.learn.reply_checks import check_replies
from winnow.learn.round_loop import Schedule
from winnow.learn.selection import SelectedClients, Selection, SelectionContext, UniformSelector
from winnow.learn.stack import ModelState
from winnow.learn.tensor_arithmetic import minus, plus, real
from winnow.learn.training_workflow import TrainingWorkflow

DEFAULT_BUFFER_SIZE = 10
"""The paper's K, unless another one is set or fewer clients are at work."""
MAX_DRAWS = 100
"""If so many draws find nobody who is idle, there is nobody."""


class BufferedSchedule(Schedule):
    """As many clients as a cohort has are always training; every `goal` replies make a version (the paper's K).

    A reply that is τ versions late counts 1/√(1 + τ): θ ← θ + 1/K·Σ s(τ_k)·(θ_k − θ_v), where θ_v is the version from
    which client k departed. When a client has answered, another one takes its place and is sent the present version.
    """

    name: Literal["buffered"] = "buffered"
    buffer_size: int | None = Field(None, ge=1)

    @property
    def min_training_clients(self) -> int:
        return self.buffer_size or 1

    def conflict(self, whole: Algorithm) -> str | None:
        rule, size = whole.aggregate, self.buffer_size or DEFAULT_BUFFER_SIZE
        if size < rule.min_clients:
            name = getattr(rule, "name", "")
            return (
                f"schedule.buffer_size = {size}: aggregate.name = {name!r} needs {rule.min_clients} updates; raise it"
            )
        return None

    def run(self, training: TrainingWorkflow, selection: Selection, federation: Federation) -> Iterator[AnyEvent]:
        with federation.dispatch(()) as exchange:
            underway = PendingTasks.resumed(training, federation, exchange)
            while training.round < training.rounds:
                context = training.begin(federation, underway.oldest(training.round))
                selected = selection.propose(context)
                places, sent, arrived = len(selected.clients), list[int](), list[Outcome]()
                idle = _idle(selected, selection, context, underway, sent)
                while len(arrived) < min(self.buffer_size or DEFAULT_BUFFER_SIZE, places):
                    vacant = max(0, places - len(underway))  # a selection may have proposed more before
                    fresh = list(dict.fromkeys(islice(idle, vacant)))
                    underway.send(training, federation, fresh)
                    sent += fresh
                    arrived.append(next(iter(exchange)))
                    underway.done(arrived[-1].task)
                yield from training.announce(_only(selected, sent), federation)
                gathered = _fold(arrived, training, federation)
                gathered = training.apply(gathered, federation)
                training.observe(selection, context, gathered.reported)
                training.schedule_state = underway.snapshot()
                yield from training.finish(gathered, selection, federation)


def _idle(
    selected: SelectedClients,
    selection: Selection,
    context: SelectionContext,
    underway: PendingTasks,
    sent: Sequence[int],
) -> Iterator[int]:
    """Clients that are not at work, in the order in which the selection would have them.

    Nobody is sent the same version twice: it would make the same update of it again.
    """
    for _ in range(MAX_DRAWS):
        for client in context.rng.permutation(selected.clients).tolist():
            if client not in underway and client not in sent:
                yield client
        selected = selection.propose(context)


def _only(selected: SelectedClients, clients: Sequence[int]) -> SelectedClients:
    """The selected clients to whom a task was sent."""
    chosen, counts = np.unique(np.array(clients, np.int64), return_counts=True)
    return SelectedClients(clients=chosen, counts=counts, scores=selected.scores)


def _fold(arrived: Sequence[Outcome], training: TrainingWorkflow, federation: Federation) -> RoundResult:
    """Fold the replies as if each had departed from the present model."""
    ordered = sorted(arrived, key=lambda outcome: outcome.task.client)
    sound, refused, answered = check_replies(ordered, training.expected)
    moved = [_moved(reply, training.shared, training.round - 1) for reply in sound]
    counts = {reply.task.client: 1 for reply in sound}
    folded, model, parts = fold_finite(
        moved,
        refused,
        counts,
        lambda: training.start_aggregation(federation.population, len(arrived)),
        simulated=federation.simulated,
    )
    return RoundResult(model=model, parts=parts, aggregated=folded, reported=sound, rejected=refused, answered=answered)


def _moved(reply: Reply, present: ModelState, version: int) -> Reply:
    """The client's step, shortened by its lateness, taken from the present model. Counters come as they are."""
    own, departed = real(reply.payload["model"]), reply.task.payload["model"]
    weight = 1 / np.sqrt(1 + version - reply.task.version)
    step = minus(own, departed)
    model = {**reply.payload["model"], **plus({name: present[name] for name in own}, step, weight)}
    return replace(reply, payload={**reply.payload, "model": model})


fedbuff = Recipe(
    name="fedbuff",
    summary="asynchronous: a full buffer makes a new version",
    select=UniformSelector,
    aggregate=partial(PartialAggregation, weights="uniform"),
    schedule=BufferedSchedule,
)
