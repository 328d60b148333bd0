"""A federation in this process, on virtual time.

The fleet says how long each task will take before any work is done, so arrivals are ordered first, and clients whose
replies nobody waits for are never trained. Those that are awaited are answered together: tasks that ask the same of
different clients go to the handler as one cohort.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from msgspec.structs import replace

from winnow.core import (
    UNTIL_ALL,
    Cost,
    Exchange,
    Failure,
    Filter,
    Handler,
    Outcome,
    Payload,
    Population,
    Randomness,
    Reply,
    SiteError,
    Task,
    Until,
    VirtualClock,
    Work,
    stream,
    wrap,
)
from winnow.fleet import Fleet
from winnow.simulate.kept_states import KeptStates, StatesByClient

Site = TypeVar("Site")


class _Arrival(NamedTuple):
    """A task's reply, known in advance: when it will be there, what it will have cost, and whether it never comes.

    Tuples are ordered by their first entries, and no two have the same sequence number.
    """

    at: float
    sequence: int
    task: Task
    cost: Cost
    drops_out: bool
    """The client drops out while it trains; when its reply would have been due, it is given up."""


class SimulatedFederation(Generic[Site]):
    """Reaches simulated clients, all hosted by one site in this process."""

    def __init__(
        self,
        *,
        site: Site,
        handlers: Mapping[str, Handler[Site]],
        population: Population,
        fleet: Fleet,
        clock: VirtualClock | None = None,
        filters: Sequence[Filter[Site]] = (),
        store: KeptStates | None = None,
    ) -> None:
        self.site, self.fleet = site, fleet
        self.population = population
        self.clock = clock or VirtualClock()
        self.randomness: Randomness = stream
        self.simulated = True
        self.handlers = {name: wrap(handler, filters) for name, handler in handlers.items()}
        self.store: KeptStates = StatesByClient() if store is None else store
        self._proposed: dict[int, tuple[int, Payload]] = {}

    def dispatch(self, tasks: Iterable[Task], until: Until = UNTIL_ALL) -> "SimulatedExchange[Site]":
        exchange = SimulatedExchange(self, until)
        exchange.send(tasks)
        return exchange

    def propose(self, task: Task, state: Payload) -> None:
        """The reply to this task has arrived, and its client would keep this state."""
        self._proposed[task.client] = (task.id, state)

    def settle(self, tasks: Iterable[Task]) -> None:
        proposed, self._proposed = self._proposed, {}
        for task in tasks if proposed else ():
            made_for, state = proposed.get(task.client, (None, {}))
            if made_for == task.id:  # not if the client has answered another task since
                self.store.write(task.client, state)

    def schedule(self, tasks: Sequence[Task], begun: float, first: int) -> Iterator[_Arrival]:
        """When each task's reply will be there, by the fleet's cost model; ties are broken by the order of sending."""
        groups: dict[tuple[Work, int], list[int]] = {}
        for i, task in enumerate(tasks):
            groups.setdefault((task.work, task.round), []).append(i)
        for (work, number), members in groups.items():
            clients = np.fromiter((tasks[i].client for i in members), np.int64, len(members))
            costs = self.fleet.costs(clients, self.population.sizes[clients], work, number)
            finish = (begun + costs.seconds).tolist()
            gone = (self.fleet.dropouts(clients, number) & (work.training_passes > 0)).tolist()
            for i, at, cost, drops_out in zip(members, finish, costs.rows(work), gone, strict=True):
                yield _Arrival(at, first + i, tasks[i], cost, drops_out)

    def handler_for(self, name: str) -> Handler[Site]:
        if name not in self.handlers:
            known = ", ".join(self.handlers)
            raise SiteError("simulation", name, f"there is no handler for this task; available: {known}")
        return self.handlers[name]

    def with_client_state(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """The tasks as their clients see them: with what each keeps."""
        if self.store.empty:
            return tasks
        states = ((task, self.store.read(task.client)) for task in tasks)
        return [replace(task, client_state=state) if state else task for task, state in states]


class SimulatedExchange(Exchange, Generic[Site]):
    """An open exchange: outcomes come in the order of their virtual arrival, and move the clock."""

    def __init__(self, federation: SimulatedFederation[Site], until: Until) -> None:
        self._federation, self._until = federation, until
        self._deadline = np.inf if until.seconds is None else federation.clock.now + until.seconds
        self._waiting: list[_Arrival] = []  # the next to arrive stands last
        self._outcomes: dict[int, Outcome] = {}
        self._sent = self._replied = 0

    def send(self, tasks: Iterable[Task], since: float | None = None) -> None:
        batch = list(tasks)
        begun = self._federation.clock.now if since is None else since
        self._waiting.extend(self._federation.schedule(batch, begun, self._sent))
        self._waiting.sort(reverse=True)
        self._sent += len(batch)

    def __iter__(self) -> Iterator[Outcome]:
        while self._waiting and self._replied != self._until.replies:
            arrival = self._waiting[-1]
            if arrival.at > self._deadline:
                self._federation.clock.advance_to(self._deadline)
                return
            if arrival.sequence not in self._outcomes and not arrival.drops_out:
                cohort = self._cohort_of(arrival.task)
                tasks = self._federation.with_client_state([each.task for each in cohort])
                outcomes = self._federation.handler_for(arrival.task.name)(tasks, self._federation.site)
                self._outcomes.update(zip((each.sequence for each in cohort), outcomes, strict=True))
            self._waiting.pop()
            self._federation.clock.advance_to(arrival.at)
            outcome = _lost(arrival) if arrival.drops_out else self._delivered(arrival)
            self._replied += isinstance(outcome, Reply)
            yield outcome

    def _delivered(self, arrival: _Arrival) -> Outcome:
        made = self._outcomes.pop(arrival.sequence)
        if isinstance(made, Reply) and made.new_client_state:
            self._federation.propose(arrival.task, made.new_client_state)
        return _as_sent(made, arrival)

    def _cohort_of(self, task: Task) -> list[_Arrival]:
        """The task and all awaited ones of its kind that have no outcome yet, in the order of the clients' numbers."""
        alike = (a for a in self._awaited() if a.sequence not in self._outcomes and _alike(a.task, task))
        return sorted(alike, key=lambda a: (a.task.client, a.sequence))

    def _awaited(self) -> list[_Arrival]:
        """The arrivals that will be delivered unless more tasks are sent."""
        coming = [a for a in reversed(self._waiting) if not a.drops_out and a.at <= self._deadline]
        return coming if self._until.replies is None else coming[: self._until.replies - self._replied]

    def cancel(self, clients: Collection[int]) -> None:
        for arrival in self._waiting:
            if arrival.task.client in clients:
                self._outcomes.pop(arrival.sequence, None)
        self._waiting = [arrival for arrival in self._waiting if arrival.task.client not in clients]

    def close(self) -> None:
        self._waiting.clear()
        self._outcomes.clear()


def _as_sent(outcome: Outcome, arrival: _Arrival) -> Outcome:
    """The outcome as it travels: for the task that was sent, with its cost, and without what stays at the site."""
    if not isinstance(outcome, Reply):
        return Failure(task=arrival.task, stage=outcome.stage, reason=outcome.reason)
    return Reply(
        task=arrival.task,
        payload=outcome.payload,
        metrics=outcome.metrics,
        cost=arrival.cost,
        peer_messages=outcome.peer_messages,
    )


def _lost(arrival: _Arrival) -> Failure:
    return Failure(task=arrival.task, stage="training", reason="the client dropped out")


def _alike(one: Task, other: Task) -> bool:
    """Whether two tasks can be answered together: they ask the same of different clients."""
    return (
        one.round == other.round
        and one.version == other.version
        and one.name == other.name
        and (one.payload is other.payload or _same_parts(one.payload, other.payload))
        and (one.settings is other.settings or one.settings == other.settings)
    )


def _same_parts(one: Payload, other: Payload) -> bool:
    return one.keys() == other.keys() and all(one[part] is other[part] for part in one)
