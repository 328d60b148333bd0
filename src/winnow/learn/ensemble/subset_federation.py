"""A federation as seen by some of its clients: they are its clients 0, 1, 2, … and nobody else is there."""

from collections.abc import Collection, Iterable, Iterator

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from winnow.core import UNTIL_ALL, Clock, Exchange, Federation, Outcome, Population, Randomness, Task, Until


class SubsetFederation:
    """Some clients of a federation, under numbers of their own."""

    def __init__(self, federation: Federation, clients: NDArray[np.int64]) -> None:
        self._whole, self.clients = federation, clients
        self._place = {client: place for place, client in enumerate(clients.tolist())}
        everybody = federation.population
        names = tuple(everybody.names[client] for client in clients.tolist()) if everybody.names else ()
        self.population = Population(sizes=everybody.sizes[clients], names=names)

    @property
    def clock(self) -> Clock:
        return self._whole.clock

    @property
    def randomness(self) -> Randomness:
        return self._whole.randomness

    @property
    def simulated(self) -> bool:
        return self._whole.simulated

    def dispatch(self, tasks: Iterable[Task], until: Until = UNTIL_ALL) -> Exchange:
        return _SubsetExchange(self, self._whole.dispatch([self.outward(task) for task in tasks], until))

    def settle(self, tasks: Iterable[Task]) -> None:
        self._whole.settle([self.outward(task) for task in tasks])

    def outward(self, task: Task) -> Task:
        """The task under its client's number in the whole federation."""
        return replace(task, client=int(self.clients[task.client]))

    def inward(self, outcome: Outcome) -> Outcome:
        """The outcome under its client's own number here."""
        return replace(outcome, task=replace(outcome.task, client=self._place[outcome.task.client]))


class _SubsetExchange(Exchange):
    def __init__(self, subset: SubsetFederation, exchange: Exchange) -> None:
        self._subset, self._exchange = subset, exchange

    def __iter__(self) -> Iterator[Outcome]:
        return (self._subset.inward(outcome) for outcome in self._exchange)

    def send(self, tasks: Iterable[Task], since: float | None = None) -> None:
        self._exchange.send([self._subset.outward(task) for task in tasks], since)

    def cancel(self, clients: Collection[int]) -> None:
        self._exchange.cancel([int(self._subset.clients[client]) for client in clients])

    def close(self) -> None:
        self._exchange.close()
