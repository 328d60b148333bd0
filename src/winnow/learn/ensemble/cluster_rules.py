"""Which clients train a leaf together: by what is public of them, by their names, or by chance (section 3.1).

A rule gives each leaf's clients. Clusters by `loss` are made from labels, and refused where noise is to hide those.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from winnow.core import Choice, ConfigError, stream

Members = NDArray[np.int64]
MAX_LEAVES = 1000
LeafCount = Field(ge=1, le=MAX_LEAVES)
MAX_STEPS = 100


@dataclass(frozen=True, kw_only=True)
class PublicAttributes:
    """What is public of clients: their names, and by column what is known of each."""

    names: Sequence[str]
    column: Callable[[str], NDArray[Any]]
    """A value a client: a number, or a category as text. An unknown column raises a `ConfigError`."""
    features: Callable[[Sequence[str]], NDArray[np.float64]]
    """A row of scaled numbers a client, of these columns or of all."""

    def __len__(self) -> int:
        return len(self.names)


def names_alone(names: Sequence[str]) -> PublicAttributes:
    """Of clients nothing is known but their names."""

    def nothing(_: Any) -> NDArray[Any]:
        raise ConfigError("ensemble.clusters: nothing is known of clients here but their names")

    return PublicAttributes(names=names, column=nothing, features=nothing)


class ClusterRule(Choice):
    """Which clients train a leaf together."""

    from_labels: ClassVar[bool] = False
    """Whether clusters tell something of labels."""
    by_attributes: ClassVar[bool] = False
    """Whether it takes attributes of clients, which a deployed server does not know."""
    disjoint: ClassVar[bool] = True

    @abstractmethod
    def clusters(self, clients: PublicAttributes, seed: int) -> dict[str, Members]:
        """The clients of each cluster by its name; every cluster has some."""

    @property
    def most_leaves(self) -> int:
        """No more clusters than this come of it."""
        return getattr(self, "count", None) or MAX_LEAVES

    @property
    def text(self) -> str:
        """Who trains which leaf, for people: "clients are clustered by …"."""
        return str(getattr(self, "name", ""))


class ColumnClusters(ClusterRule):
    """By a public column: each category, or numbers between `edges`, or `count` groups of about equal size. Of more
    categories than `count`, the rarest are one cluster.
    """

    name: Literal["column"] = "column"
    column: str
    edges: tuple[float, ...] = ()
    count: int | None = Field(None, ge=1, le=1000)
    by_attributes: ClassVar[bool] = True

    def clusters(self, clients: PublicAttributes, seed: int) -> dict[str, Members]:
        values = clients.column(self.column)
        if values.dtype == object:
            return self._categories(values)
        edges = np.asarray(self.edges, np.float64)
        if not len(edges):
            if self.count is None:
                raise ConfigError(
                    f"ensemble.clusters: column '{self.column}' has numbers; say between which (edges = [30, 50]), or "
                    "into how many groups of equal size (count = 4)"
                )
            edges = np.unique(np.quantile(values, np.arange(1, self.count) / self.count))
        place = np.searchsorted(np.sort(edges), values, side="right")
        ends = ["", *(f"{edge:g}" for edge in np.sort(edges)), ""]
        return {f"{self.column} {ends[k]}–{ends[k + 1]}": np.flatnonzero(place == k) for k in np.unique(place).tolist()}

    def _categories(self, values: NDArray[Any]) -> dict[str, Members]:
        names, counts = np.unique(values.astype(str), return_counts=True)
        order = np.argsort(-counts, kind="stable")
        apart = names[order] if self.count is None else names[order][: max(self.count - (len(names) > self.count), 1)]
        found = {f"{self.column} {name}": np.flatnonzero(values.astype(str) == name) for name in sorted(apart)}
        rest = np.flatnonzero(~np.isin(values.astype(str), apart))
        return {**found, f"{self.column} other": rest} if len(rest) else found

    @property
    def text(self) -> str:
        return f"column '{self.column}'"


class KMeansClusters(ClusterRule):
    """k-means on public columns, or on all features, of which a client has the mean over its samples."""

    name: Literal["k-means"] = "k-means"
    count: int = LeafCount
    columns: tuple[str, ...] = ()
    by_attributes: ClassVar[bool] = True

    def clusters(self, clients: PublicAttributes, seed: int) -> dict[str, Members]:
        _enough(self.count, len(clients))
        place = k_means(clients.features(self.columns), self.count, stream(seed, "ensemble", "k-means"))
        return {f"group {k + 1}": np.flatnonzero(place == k) for k in np.unique(place).tolist()}


class HashClusters(ClusterRule):
    """By a hash of clients' names: the same at every start, and without anybody's data."""

    name: Literal["hash"] = "hash"
    count: int = LeafCount

    @property
    def text(self) -> str:
        return "a hash of their names"

    def clusters(self, clients: PublicAttributes, seed: int) -> dict[str, Members]:
        digests = (hashlib.sha256(name.encode()).digest() for name in clients.names)
        place = np.array([int.from_bytes(digest[:8], "big") % self.count for digest in digests])
        return {f"hash {k}": np.flatnonzero(place == k) for k in np.unique(place).tolist()}


class RandomClusters(ClusterRule):
    """By chance, in groups of equal size."""

    name: Literal["random"] = "random"
    count: int = LeafCount

    @property
    def text(self) -> str:
        return "chance"

    def clusters(self, clients: PublicAttributes, seed: int) -> dict[str, Members]:
        _enough(self.count, len(clients))
        order = stream(seed, "ensemble", "random clusters").permutation(len(clients))
        return {f"group {k + 1}": np.sort(part) for k, part in enumerate(np.array_split(order, self.count))}


class EverybodyClusters(ClusterRule):
    """No clusters: every leaf is trained by all clients, from another start and in another order."""

    name: Literal["everybody"] = "everybody"
    count: int = LeafCount
    disjoint: ClassVar[bool] = False

    def clusters(self, clients: PublicAttributes, seed: int) -> dict[str, Members]:
        return {f"model {k + 1}": np.arange(len(clients)) for k in range(self.count)}


class SiteClusters(ClusterRule):
    """By lists of clients' or sites' names: `groups = { north = ["a", "b"], south = ["c"] }`. All must be in one."""

    name: Literal["sites"] = "sites"
    groups: dict[str, tuple[str, ...]]

    @property
    def text(self) -> str:
        return "lists of names"

    @property
    def most_leaves(self) -> int:
        return len(self.groups)

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, table: Any) -> Any:
        groups = table.get("groups") if isinstance(table, Mapping) else None
        if not isinstance(groups, Mapping):
            return table
        return {**table, "groups": {key: tuple(names) for key, names in groups.items()}}

    def clusters(self, clients: PublicAttributes, seed: int) -> dict[str, Members]:
        group_of = {name: group for group, names in self.groups.items() for name in names}
        if len(group_of) != sum(map(len, self.groups.values())):
            raise ConfigError("ensemble.clusters.groups: a name is in two groups; a site trains one leaf")
        found: dict[str, list[int]] = {group: [] for group in self.groups}
        for client, name in enumerate(clients.names):
            group = group_of.get(name, group_of.get(name.split(", ")[0]))
            if group is None:
                raise ConfigError(f"ensemble.clusters.groups: {name!r} is in no group; add it to one")
            found[group].append(client)
        if empty := [group for group, members in found.items() if not members]:
            raise ConfigError(f"ensemble.clusters.groups: nobody in group {empty[0]!r} takes part; remove it")
        return {group: np.array(members, np.int64) for group, members in found.items()}


class LossClusters(ClusterRule):
    """Before each round every client joins the leaf whose loss on its samples is least (as IFCA does, Ghosh et al.,
    2020). That a client tells which one it is tells of its labels.
    """

    name: Literal["loss"] = "loss"
    count: int = LeafCount
    from_labels: ClassVar[bool] = True

    @property
    def text(self) -> str:
        return "their loss"

    def clusters(self, clients: PublicAttributes, seed: int) -> dict[str, Members]:
        return RandomClusters(count=self.count).clusters(clients, seed)


def _enough(count: int, clients: int) -> None:
    if count > clients:
        raise ConfigError(f"ensemble.clusters.count = {count}, but there are {clients} clients; lower it")


def k_means(rows: NDArray[np.float64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The cluster of each row: Lloyd's steps from the start of k-means++ (Arthur and Vassilvitskii, 2007)."""
    centres = rows[[rng.integers(len(rows))]]
    while len(centres) < count:
        nearest = _distances(rows, centres).min(1)
        total = nearest.sum()
        probability = nearest / total if total > 0 else np.full(len(rows), 1 / len(rows))
        centres = np.concatenate([centres, rows[[rng.choice(len(rows), p=probability)]]])
    place = np.zeros(len(rows), np.int64)
    for _ in range(MAX_STEPS):
        found = _distances(rows, centres).argmin(1)
        if (found == place).all() and _ > 0:
            break
        place = found
        centres = np.stack([rows[place == k].mean(0) if (place == k).any() else centres[k] for k in range(count)])
    return place


def _distances(rows: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.stack([((rows - centre) ** 2).sum(1) for centre in centres], axis=1)
    return found
