"""Clustered sampling by model similarity (Fraboni et al., 2021, algorithm 2): one client from each group of alike ones,
so that every client keeps its weight in expectation.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from winnow.core import Population, Reply
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.selection import SelectedClients, Selection, SelectionContext, SelectorWithoutReplacement
from winnow.learn.update_distances import DistanceMetric, LastUpdates


class ClusteredSelector(SelectorWithoutReplacement):
    """K urns are filled with clients whose last updates are near one another, and one client is drawn from each.

    A client is drawn n_k·K/M times in expectation, where M is the number of all samples, and may be drawn from several
    urns: it then trains once and counts as often. With models that count alike, the aggregate is unbiased.
    """

    name: Literal["clustered"] = "clustered"
    sees_updates: ClassVar[bool] = True
    distance: DistanceMetric = "angle"

    def start(self, population: Population) -> Selection:
        return _ClusteredSelection(self, population)


class _ClusteredSelection(Selection):
    def __init__(self, settings: ClusteredSelector, population: Population) -> None:
        self._settings, self._sizes = settings, population.sizes
        self._count = settings.cohort_size(len(population))
        self._updates = LastUpdates(len(population))

    def propose(self, context: SelectionContext) -> SelectedClients:
        self._updates.allocate(context)
        shares = fill_urns(self._sizes, self._count, self._updates.distances(self._settings.distance))
        marks = context.rng.integers(self._sizes.sum(), size=self._count)
        drawn = (shares.cumsum(axis=1) > marks[:, None]).argmax(axis=1)
        clients, counts = np.unique(drawn, return_counts=True)
        return SelectedClients(clients=clients, counts=counts)

    def observe(self, context: SelectionContext, replies: Sequence[Reply]) -> None:
        self._updates.record(context, replies)

    def state(self) -> Mapping[str, Any]:
        return self._updates.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._updates.restore(state)


def fill_urns(sizes: NDArray[np.int64], urns: int, distances: NDArray[np.float64]) -> NDArray[np.int64]:
    """Each client's share of each urn, [urns, clients]: an urn holds M = Σ n_k, a client is in all of them urns·n_k.

    A client that fills urns by itself is given them. The others are clustered by Ward's method, into groups as
    large as an urn can hold; the heaviest get an urn each, and the rest is spread over the room that is left.
    """
    capacity = int(sizes.sum())
    alone, mass = np.divmod(urns * sizes, capacity)
    shares = np.zeros((urns, len(sizes)), np.int64)
    owners = np.repeat(np.arange(len(sizes)), alone)
    shares[np.arange(len(owners)), owners] = capacity
    if len(owners) < urns:
        some = np.flatnonzero(mass)
        merges = _ward(distances[np.ix_(some, some)])
        groups = [some[group] for group in _cut(merges, mass[some], capacity)]
        _spread(shares[len(owners) :], groups, mass, capacity)
    return shares


def _ward(distances: NDArray[np.float64]) -> NDArray[np.int64]:
    """The pairs of groups that Ward's method merges, one after another."""
    from scipy.cluster.hierarchy import linkage  # noqa: PLC0415 - SciPy takes long to import, and no one else needs it
    from scipy.spatial.distance import squareform  # noqa: PLC0415

    merges: NDArray[np.int64] = linkage(squareform(distances, checks=False), "ward")[:, :2].astype(np.int64)
    return merges


def _cut(merges: NDArray[np.int64], mass: NDArray[np.int64], capacity: int) -> list[NDArray[np.int64]]:
    """The largest groups of the tree that fit into an urn. All urns together are full, so there are enough of them."""
    groups = {place: np.array([place]) for place in range(len(mass))}
    for step, (one, other) in enumerate(merges.tolist()):
        if one in groups and other in groups:
            both = np.concatenate([groups[one], groups[other]])
            if mass[both].sum() <= capacity:
                del groups[one], groups[other]
                groups[len(mass) + step] = both
    return list(groups.values())


def _spread(shares: NDArray[np.int64], groups: list[NDArray[np.int64]], mass: NDArray[np.int64], capacity: int) -> None:
    groups.sort(key=lambda group: -int(mass[group].sum()))
    for urn, group in zip(shares, groups, strict=False):
        urn[group] = mass[group]
    room = capacity - shares.sum(axis=1)
    urn_now = 0
    for client in (client for group in groups[len(shares) :] for client in group.tolist()):
        left = int(mass[client])
        while left:
            if room[urn_now] == 0:
                urn_now += 1
            part = min(left, int(room[urn_now]))
            shares[urn_now, client] += part
            room[urn_now] -= part
            left -= part


clustered_sampling = Recipe(
    name="clustered-sampling",
    summary="one client per cluster of updates, partial aggregation",
    select=ClusteredSelector,
    aggregate=partial(PartialAggregation, weights="uniform"),
)
