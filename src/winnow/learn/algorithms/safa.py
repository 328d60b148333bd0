"""SAFA (Wu et al., 2021): semi-asynchronous rounds in which stragglers go on with what they have, up to a lag."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from winnow.core import AnyEvent, Exchange, Federation, Outcome, Reply, Snapshot
from winnow.learn.aggregation import Contribution, PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.async_tasks_in_flight import PendingTasks
from winnow.learn.client_store import ClientStore
from winnow.learn.collect import RoundResult, mean_parts
from winnow.learn.reply_checks import Rejection, check_replies, is_bounded_update
from winnow.learn.round_loop import Schedule
from winnow.learn.selection import SelectedClients, Selection, UniformSelector
from winnow.learn.stack import ModelState
from winnow.learn.training_workflow import TrainingWorkflow

CACHE = "cache/"
LAST_PICKED = "picked"
MODEL = "model"


class LagTolerantSchedule(Schedule):
    """Everybody trains; the first replies fill a quota, as large as a cohort of `select`, and end the round.

    Clients that were not picked in the last round are picked first (compensatory first come, first merged; the paper's
    algorithm 1). The server keeps an entry for each client and folds all of them (the paper's three-step discriminative
    aggregation): before, the picked replace theirs, and entries of clients that lag more than `lag_tolerance` versions
    become the present model; after, replies that did not fit into the quota replace theirs, and so count in the next
    round. Clients at work go on with the version that they have, but those that lag too far must give it up and begin
    again with the present one (lag-tolerant distribution: such clients are deprecated and forced to synchronise).
    """

    name: Literal["lag-tolerant"] = "lag-tolerant"
    policies: ClassVar[frozenset[str]] = frozenset()
    lag_tolerance: int = Field(5, ge=0)

    def together(self, cohort_size: int, clients: int) -> int:
        return clients

    def run(self, training: TrainingWorkflow, selection: Selection, federation: Federation) -> Iterator[AnyEvent]:
        clients = range(len(federation.population))
        cache, picked_last = _restored(training.schedule_state, len(clients))
        with federation.dispatch(()) as exchange:
            underway = PendingTasks.resumed(training, federation, exchange)
            while training.round < training.rounds:
                context = training.begin(federation, underway.oldest(training.round))
                quota = len(selection.propose(context).clients)
                lagging = {
                    task.client for task in underway.tasks if context.version - task.version > self.lag_tolerance
                }
                underway.cancel(lagging)
                idle = [k for k in clients if k not in underway]
                yield from training.announce(_selected(idle), federation)
                underway.send(training, federation, idle)
                arrived = self._collect_replies(quota, picked_last, training, exchange, underway)
                gathered = _fold(arrived, lagging, cache, training, federation)
                gathered = training.apply(gathered, federation, arrived.surplus)
                training.observe(selection, context, gathered.reported)
                picked_last = {reply.task.client for reply in arrived.picked}
                training.schedule_state = _snapshot(underway, cache, picked_last)
                yield from training.finish(gathered, selection, federation)

    def _collect_replies(
        self, quota: int, picked_last: set[int], training: TrainingWorkflow, exchange: Exchange, underway: PendingTasks
    ) -> "_ArrivedReplies":
        """Replies in the order of their arrival, until the quota is full or nobody is left."""
        arrived = _ArrivedReplies()
        for outcome in exchange:
            underway.done(outcome.task)
            sound = arrived.accept(outcome, training)
            if sound is None:
                continue
            (arrived.surplus if sound.task.client in picked_last else arrived.picked).append(sound)
            if len(arrived.picked) == quota:
                break
        short = quota - len(arrived.picked)
        arrived.picked += arrived.surplus[:short]
        arrived.surplus = arrived.surplus[short:]
        return arrived


@dataclass
class _ArrivedReplies:
    """What came in a round: those picked for the quota, the surplus, and what was rejected."""

    picked: list[Reply] = field(default_factory=list)
    surplus: list[Reply] = field(default_factory=list)
    answered: list[Reply] = field(default_factory=list)
    refused: list[Rejection] = field(default_factory=list)

    def accept(self, outcome: Outcome, training: TrainingWorkflow) -> Reply | None:
        """The reply, if it can be used."""
        sound, refused, answered = check_replies([outcome], training.expected)
        self.refused += refused
        self.answered += answered
        if sound and not is_bounded_update(sound[0]):
            self.refused.append(
                Rejection(
                    client=outcome.task.client, reason="the update contains values that are not finite or too large"
                )
            )
            return None
        return sound[0] if sound else None


def _fold(
    arrived: _ArrivedReplies, lagging: set[int], cache: ClientStore, training: TrainingWorkflow, federation: Federation
) -> RoundResult:
    for client in lagging:
        cache.write(client, {MODEL: training.shared})
    _store(arrived.picked, cache)
    population = federation.population
    fold = training.start_aggregation(population, len(population))
    for client in range(len(population)):
        fold.add(Contribution(model=_entry(cache, client, training.initial), client=client))
    _store(arrived.surplus, cache)
    arrived.picked.sort(key=lambda reply: reply.task.client)
    return RoundResult(
        model=fold.finish(),
        parts=mean_parts(arrived.picked),
        aggregated=arrived.picked,
        reported=sorted([*arrived.picked, *arrived.surplus], key=lambda reply: reply.task.client),
        rejected=arrived.refused,
        answered=arrived.answered,
    )


def _store(replies: list[Reply], cache: ClientStore) -> None:
    for reply in replies:
        cache.write(reply.task.client, {MODEL: reply.payload[MODEL]})


def _entry(cache: ClientStore, client: int, initial: ModelState) -> Mapping[str, Any]:
    """What the server has of a client; at first the common start."""
    return cache.read(client).get(MODEL, initial)


def _selected(clients: list[int]) -> SelectedClients:
    return SelectedClients(clients=np.array(clients, np.int64), counts=np.ones(len(clients), np.int64))


def _snapshot(underway: PendingTasks, cache: ClientStore, picked: set[int]) -> Snapshot:
    tasks = underway.snapshot()
    kept = {f"{CACHE}{name}": array for name, array in cache.state().items()}
    return Snapshot(arrays={**tasks.arrays, **kept}, values={**tasks.values, LAST_PICKED: sorted(picked)})


def _restored(before: Snapshot, clients: int) -> tuple[ClientStore, set[int]]:
    cache = ClientStore(clients)
    cache.restore({n.removeprefix(CACHE): array for n, array in before.arrays.items() if n.startswith(CACHE)})
    return cache, set(before.values.get(LAST_PICKED, ()))


safa = Recipe(
    name="safa",
    summary="semi-asynchronous rounds that stragglers outlast",
    select=UniformSelector,
    aggregate=PartialAggregation,
    schedule=LagTolerantSchedule,
)
