"""DivFL (Balakrishnan et al., 2022): select the few clients whose updates best represent all."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from winnow.core import Population, Reply
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.selection import SelectedClients, Selection, SelectionContext, SelectorWithoutReplacement
from winnow.learn.update_distances import LastUpdates

TIE = 1e-5
"""Relative differences below this are rounding: training is in single precision, and pairs of clients often tie."""


class DiverseSelector(SelectorWithoutReplacement):
    """Greedy facility location: K clients S with a small Σ_k min_{i∈S} ‖g_k − g_i‖, the paper's bound on the error of
    letting them stand for all.

    The variant without overhead: g_k is the update of the last time that client k trained. In round 1 everybody trains
    and is aggregated, so that all are known; the authors' code asks everybody for a gradient first, which is as much to
    send. A client that has not answered yet is taken to be as far from all others as the farthest two are, so nobody
    else stands for it. With `sample`, each greedy step
    looks at so many clients drawn at random (stochastic greedy); otherwise at all.
    """

    name: Literal["diverse"] = "diverse"
    sees_updates: ClassVar[bool] = True
    trains_all_first: ClassVar[bool] = True
    sample: int | None = Field(None, ge=1)

    def start(self, population: Population) -> Selection:
        return _DiverseSelection(self, len(population))


class _DiverseSelection(Selection):
    def __init__(self, settings: DiverseSelector, clients: int) -> None:
        self._sample, self._count = settings.sample, settings.cohort_size(clients)
        self._updates = LastUpdates(clients)

    def propose(self, context: SelectionContext) -> SelectedClients:
        self._updates.allocate(context)
        if context.version == 0:
            everybody = np.arange(len(self._updates.known))
            return SelectedClients(clients=everybody, counts=np.ones(len(everybody), np.int64))
        clients = np.sort(representative_clients(self._distances(), self._count, context.rng, self._sample))
        return SelectedClients(clients=clients, counts=np.ones(len(clients), np.int64))

    def _distances(self) -> NDArray[np.float64]:
        distances, known = self._updates.distances("euclidean"), self._updates.known
        farthest = distances[np.ix_(known, known)].max(initial=0) or 1.0
        distances[~known] = distances[:, ~known] = farthest
        np.fill_diagonal(distances, 0)
        return distances

    def observe(self, context: SelectionContext, replies: Sequence[Reply]) -> None:
        self._updates.record(context, replies)

    def state(self) -> Mapping[str, Any]:
        return self._updates.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._updates.restore(state)


def representative_clients(
    distances: NDArray[np.float64], count: int, rng: np.random.Generator, sample: int | None = None
) -> NDArray[np.int64]:
    """Clients chosen one after another, each so that all are then nearest to those chosen; chance breaks ties."""
    order = rng.permutation(len(distances))
    apart, nearest = distances[np.ix_(order, order)], np.full(len(order), np.inf)
    chosen: list[int] = []
    for _ in range(count):
        left = np.setdiff1d(np.arange(len(order)), chosen)
        candidates = left if sample is None else rng.choice(left, min(sample, len(left)), replace=False)
        remaining = np.array([np.minimum(nearest, apart[k]).sum() for k in candidates])
        best = int(candidates[np.argmax(remaining <= remaining.min() + TIE * remaining.max())])  # the first of them
        nearest = np.minimum(nearest, apart[best])
        chosen.append(best)
    return order[chosen]


divfl = Recipe(
    name="divfl",
    summary="representative updates, partial aggregation",
    select=DiverseSelector,
    aggregate=PartialAggregation,
)
