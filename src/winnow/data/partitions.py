"""Ways to spread rows over clients. A row goes to at most one client, and no client is left without rows.

A new way is a class derived from `Partition`; a configuration chooses it by its `name`.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from pydantic import Field

from winnow.core import Choice, DataError
from winnow.core.join_names import counted
from winnow.data.types import Indices


@dataclass(frozen=True, kw_only=True, eq=False)
class RowPool:
    """The rows to be spread: their class labels (None in a regression) and natural owners, where known."""

    size: int
    labels: Indices | None = None
    owners: Indices | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Assignment:
    """Client k receives the pool's rows `rows[offsets[k]:offsets[k + 1]]`."""

    rows: Indices
    offsets: Indices
    owners: Indices | None = None
    """The owner that client k is, where each is one."""


class Partition(Choice):
    """A way to spread rows over clients."""

    @abstractmethod
    def assign(self, pool: RowPool, clients: int, rng: np.random.Generator) -> Assignment:
        """Say which client gets which of the pool's rows."""


class IidPartition(Partition):
    """Every client draws from the same distribution; sizes differ by at most one."""

    name: Literal["iid"] = "iid"

    def assign(self, pool: RowPool, clients: int, rng: np.random.Generator) -> Assignment:
        _check_enough(pool, clients)
        return Assignment(rows=rng.permutation(pool.size), offsets=_offsets(_even_sizes(pool.size, clients)))


class NormalSizes(Partition):
    """Sizes follow N(mean, sd²), rounded, at least one; shrunk in proportion where they exceed the rows there are."""

    name: Literal["normal-sizes"] = "normal-sizes"
    mean: float = Field(gt=0)
    sd: float = Field(ge=0)

    def assign(self, pool: RowPool, clients: int, rng: np.random.Generator) -> Assignment:
        _check_enough(pool, clients)
        draws = rng.normal(self.mean, self.sd, clients)
        sizes = np.clip(np.rint(draws), 1, pool.size).astype(np.int64)
        excess = sizes.sum() - pool.size
        if excess > 0:
            beyond_first = sizes - 1
            sizes = 1 + beyond_first * (pool.size - clients) // beyond_first.sum()
        return Assignment(rows=rng.permutation(pool.size)[: sizes.sum()], offsets=_offsets(sizes))


class Dirichlet(Partition):
    """Each class is split over the clients by proportions from a symmetric Dirichlet: a small alpha is far from IID."""

    name: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(default=0.5, ge=1e-6, le=1e6)

    def assign(self, pool: RowPool, clients: int, rng: np.random.Generator) -> Assignment:
        _check_enough(pool, clients)
        labels = class_labels(pool, self.name)
        client_of = np.empty(pool.size, dtype=np.int64)
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            counts = rng.multinomial(len(rows), rng.dirichlet(np.full(clients, self.alpha)))
            client_of[rows] = np.repeat(np.arange(clients), counts)
        return _grouped(_without_empty(client_of, clients, rng), clients, rng)


class ClassesPerClient(Partition):
    """Every client holds rows of a fixed number of classes; a class is split evenly among the clients that hold it.

    With `rows` a client gets at most so many, as many of each of its classes.
    """

    name: Literal["classes"] = "classes"
    per_client: int = Field(default=2, ge=1)
    rows: int | None = Field(default=None, ge=1)

    def assign(self, pool: RowPool, clients: int, rng: np.random.Generator) -> Assignment:
        labels = class_labels(pool, self.name)
        present = np.unique(labels)
        if self.per_client > len(present):
            raise DataError(
                f"partition classes: per_client = {self.per_client} but there are only {len(present)} classes;"
                " lower per_client"
            )
        if self.rows is not None and self.rows < self.per_client:
            raise DataError(f"partition classes: rows = {self.rows} are too few for {self.per_client} classes a client")
        held = self._draw_classes(len(present), clients, rng)
        client_of = np.full(pool.size, -1, dtype=np.int64)
        for index, label in enumerate(present):
            holders = rng.permutation(np.flatnonzero((held == index).any(axis=1)))
            rows = rng.permutation(np.flatnonzero(labels == label))
            if len(rows) < len(holders):
                raise DataError(
                    f"partition classes: {len(holders)} clients share a class of {len(rows)} rows;"
                    " use fewer clients or a smaller per_client"
                )
            if self.rows is not None:
                rows = rows[: len(holders) * (self.rows // self.per_client)]
            if len(holders):
                client_of[rows] = np.repeat(holders, _even_sizes(len(rows), len(holders)))
        return _grouped(client_of, clients, rng)

    def _draw_classes(self, classes: int, clients: int, rng: np.random.Generator) -> Indices:
        """[clients, per_client] classes, distinct in a row, cut from shuffled decks so that all are held alike."""
        per_deck = classes // self.per_client
        decks = np.tile(np.arange(classes), (-(-clients // per_deck), 1))
        dealt = rng.permuted(decks, axis=1)[:, : per_deck * self.per_client]
        return dealt.reshape(-1, self.per_client)[:clients]


class NaturalPartition(Partition):
    """Each natural owner of rows (a writer, a site) is a client; `clients` limits how many, 0 takes them all."""

    name: Literal["natural"] = "natural"

    def assign(self, pool: RowPool, clients: int, rng: np.random.Generator) -> Assignment:
        if pool.owners is None:
            raise DataError(
                "partition natural: the data have no owners; set data.owner (in an .npz file, an array "
                "'owners'; for mnist, download the writer labels), or choose another partition"
            )
        owners = np.unique(pool.owners[pool.owners >= 0])
        if len(owners) == 0:
            raise DataError("partition natural: none of the clients' rows has an owner; choose another partition")
        if clients > len(owners):
            raise DataError(f"partition natural: {clients} clients requested, but the data have {len(owners)} owners")
        if clients:
            owners = np.sort(rng.choice(owners, clients, replace=False))
        place = np.searchsorted(owners, pool.owners)
        known = owners[np.minimum(place, len(owners) - 1)] == pool.owners
        return replace(_grouped(np.where(known, place, -1), len(owners), rng), owners=owners)


def _even_sizes(rows: int, clients: int) -> Indices:
    return np.full(clients, rows // clients, dtype=np.int64) + (np.arange(clients) < rows % clients)


def _offsets(sizes: Indices) -> Indices:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)])


def _check_enough(pool: RowPool, clients: int) -> None:
    if pool.size < clients:
        raise DataError(f"{counted(pool.size, 'row')} cannot be spread over {clients} clients; lower data.clients")


def class_labels(pool: RowPool, partition: str) -> Indices:
    if pool.labels is None:
        raise DataError(
            f"partition {partition} needs one class label per row, which these data lack; use iid or normal-sizes"
        )
    return pool.labels


def _grouped(client_of: Indices, clients: int, rng: np.random.Generator) -> Assignment:
    """Rows by client, shuffled within each; rows of client -1 are left out."""
    rows = rng.permutation(np.flatnonzero(client_of >= 0))
    rows = rows[np.argsort(client_of[rows], kind="stable")]
    return Assignment(rows=rows, offsets=_offsets(np.bincount(client_of[rows], minlength=clients)))


def _without_empty(client_of: Indices, clients: int, rng: np.random.Generator) -> Indices:
    """Give each empty client one row, drawn from all rows but one of every other client."""
    empty = np.flatnonzero(np.bincount(client_of, minlength=clients) == 0)
    shuffled = rng.permutation(len(client_of))
    kept = shuffled[np.unique(client_of[shuffled], return_index=True)[1]]
    movable = np.setdiff1d(np.arange(len(client_of)), kept, assume_unique=True)
    filled = client_of.copy()
    filled[rng.choice(movable, len(empty), replace=False)] = empty
    return filled
