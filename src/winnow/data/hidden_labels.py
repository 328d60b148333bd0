"""Few labels: who keeps them, and whose are hidden. A hidden label is `NO_LABEL` in everything that clients get.

Rows are spread over clients first, with all their labels, and labels are hidden afterwards. What they were is for the
recorder of a simulation, as conditions are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from winnow.core import DataError, Settings, stream, suggest
from winnow.data.preprocessing import NO_LABEL
from winnow.data.types import ClientData, ClientsOnDemand, DataSet, Examples, FederatedData, Indices, Targets

Holder: TypeAlias = Literal["clients", "some", "server"]
"""Who has labels: every client for some of its rows, some clients for all of theirs, or the server alone."""

NEEDED = {"clients": ("share", "per_class"), "some": ("clients", "without"), "server": ("rows",)}
"""Who has labels, and what says how many: one of these. Beside the server's `rows` clients may have a `share`."""


class LabelSettings(Settings):
    """Which labels are known: `share` of every client's rows, or `per_class` rows of each of its classes; all rows of a
    share of the `clients`, or of all owners but those `without`; or `rows` at the server, spread evenly over the
    classes, which no client then has, and beside it a `share` of every client's rows, if it is given.
    """

    at: Holder
    share: float | None = Field(default=None, gt=0, le=1)
    per_class: int | None = Field(default=None, ge=1)
    clients: float | None = Field(default=None, gt=0, le=1)
    without: tuple[str, ...] | None = Field(default=None, min_length=1)
    rows: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_number(self) -> Self:
        given = [key for keys in NEEDED.values() for key in keys if getattr(self, key) is not None]
        allowed = NEEDED[self.at]
        if self.at == "server" and sorted(given) == ["rows", "share"]:
            return self
        if len(given) != 1 or given[0] not in allowed:
            beside = "nothing else but share" if self.at == "server" else "nothing else"
            raise ValueError(f"labels at {self.at!r} need {' or '.join(allowed)}, and {beside}")
        return self

    @property
    def holders(self) -> frozenset[Holder]:
        """Whose labels a method must be able to use."""
        return frozenset({self.at, "clients"} if self.at == "server" and self.share is not None else {self.at})


def require_classes(dataset: DataSet) -> None:
    """Refuse to hide what is no class label."""
    if dataset.classes is None or dataset.y.ndim != 1:
        raise DataError(f"{dataset.name}: data.labels and data.open need one class label per row; remove them")


def labelled(y: Targets) -> NDArray[np.bool_]:
    """Which rows have a label; values of a regression and sequences always do."""
    return y != NO_LABEL if y.ndim == 1 and y.dtype.kind == "i" else np.ones(len(y), bool)


def rows_at_server(dataset: DataSet, pool: Indices, rows: int, seed: int) -> Indices:
    """So many labelled rows, as many of each class as of any other where there are enough."""
    known = stream(seed, "data", "labels at the server").permutation(pool[labelled(dataset.y)[pool]])
    if rows > len(known):
        raise DataError(f"{dataset.name}: data.labels needs {rows} rows at the server; only {len(known)} are available")
    place = _place_in_class(dataset.y[known].astype(np.int64))
    return np.sort(known[np.argsort(place, kind="stable")[:rows]])


def open_rows(dataset: DataSet, pool: Indices, rows: int, seed: int) -> Indices:
    """So many rows that everybody may see, without labels."""
    if rows > len(pool):
        raise DataError(f"{dataset.name}: data.open needs {rows} rows; only {len(pool)} are available")
    return np.sort(stream(seed, "data", "open").permutation(pool)[:rows])


def hide_labels(
    clients: ClientData, settings: LabelSettings, seed: int, owner_names: Sequence[str] | None = None
) -> Targets:
    """Hide labels of clients' rows, in place; gives an array like y with what was hidden, and `NO_LABEL` elsewhere."""
    if settings.without is None:
        kept = _KEPT[settings.at](clients, settings, seed)
    else:
        kept = _kept_but_of(clients, settings.without, owner_names)
    hidden = clients.rows[~kept]
    truth = np.full_like(clients.y, NO_LABEL)
    truth[hidden] = clients.y[hidden]
    clients.y[hidden] = NO_LABEL
    return truth


def _kept_at_clients(clients: ClientData, settings: LabelSettings, seed: int) -> NDArray[np.bool_]:
    """A share of each client's rows, at least one; or its first so many of each class, in a random order."""
    owner = np.repeat(np.arange(len(clients)), clients.sizes)
    order = np.lexsort((stream(seed, "data", "labels at clients").random(len(owner)), owner))
    kept = np.zeros(len(owner), bool)  # as it stays where the server alone has labels
    if settings.share is not None:
        most = np.maximum(np.rint(settings.share * clients.sizes), 1)
        kept[order] = np.arange(len(owner)) - clients.offsets[owner] < most[owner]
    elif settings.per_class is not None:
        label = clients.y[clients.rows].astype(np.int64) - NO_LABEL
        kept[order] = _place_in_class(owner[order] * (label.max(initial=0) + 1) + label[order]) < settings.per_class
    return kept


def _kept_at_some(clients: ClientData, settings: LabelSettings, seed: int) -> NDArray[np.bool_]:
    assert settings.clients is not None
    order = stream(seed, "data", "labelled clients").permutation(len(clients))
    kept = np.zeros(len(clients), bool)
    kept[order[: max(1, round(settings.clients * len(clients)))]] = True
    return np.repeat(kept, clients.sizes)


def _kept_but_of(clients: ClientData, without: Sequence[str], owner_names: Sequence[str] | None) -> NDArray[np.bool_]:
    if owner_names is None:
        raise DataError("data.labels: without names owners, and clients are none; use partition = { name = 'natural' }")
    for name in without:
        if name not in owner_names:
            raise DataError(f"data.labels: without: {suggest(name, owner_names)}")
    return np.repeat([name not in without for name in owner_names], clients.sizes)


_KEPT: dict[Holder, Callable[[ClientData, LabelSettings, int], NDArray[np.bool_]]] = {
    "clients": _kept_at_clients,
    "some": _kept_at_some,
    "server": _kept_at_clients,
}


def _place_in_class(labels: Indices) -> Indices:
    """How many of the same class come before each row."""
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)]
    begin = np.maximum.accumulate(np.where(first, np.arange(len(ordered)), 0))
    place = np.empty(len(labels), np.int64)
    place[order] = np.arange(len(ordered)) - begin
    return place


# Methods that learn from labels alone ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LabelledRows:
    """What remains of clients for a method that learns from labelled rows alone."""

    clients: ClientData
    kept: Indices
    """Which clients have any; the others take no part."""
    notice: str = ""
    """One line for the user, where rows were left out."""


def labelled_rows(clients: ClientData, method: str) -> LabelledRows:
    """The clients' labelled rows; `method` says in messages whose training this is."""
    known = labelled(clients.y)[clients.rows]
    if known.all():
        return LabelledRows(clients=clients, kept=np.arange(len(clients)))
    if not known.any():
        raise DataError(
            f"no client has a label, and {method} learns from labelled rows alone; choose a method for unlabelled "
            "data, such as fixmatch or semifl"
        )
    owner = np.repeat(np.arange(len(clients)), clients.sizes)
    counts = np.bincount(owner[known], minlength=len(clients))
    kept = np.flatnonzero(counts)
    left = replace(
        clients, rows=clients.rows[known], offsets=np.concatenate([[0], np.cumsum(counts[kept])]).astype(np.int64)
    )
    notice = f"{method} trains on the {known.sum():,} of {len(known):,} rows that have a label"
    if len(kept) < len(clients):
        notice += f"; {len(clients) - len(kept):,} of {len(clients):,} clients have none, and take no part"
    return LabelledRows(clients=left, kept=kept, notice=notice)


def with_labelled_rows(federated: FederatedData, method: str) -> tuple[FederatedData, str]:
    """The data for a method that learns from labelled rows alone, and a line for the user where rows were left out.

    Clients that are loaded on demand must have labels throughout: their sizes are told before anything is loaded.
    """
    clients = federated.clients
    if isinstance(clients, ClientsOnDemand):
        return replace(federated, clients=all_labelled(clients, method)), ""
    found = labelled_rows(clients, method)
    if not found.notice:
        return federated, ""
    conditions, names = federated.conditions, federated.client_names
    everybody = len(found.kept) == len(names)
    return replace(
        federated,
        clients=found.clients,
        conditions=replace(conditions, of_client=conditions.of_client[found.kept]),
        local_test=federated.local_test and clients_at(federated.local_test, found.kept),
        owner_names=federated.owner_names if everybody else tuple(names[client] for client in found.kept.tolist()),
    ), found.notice


def all_labelled(clients: ClientsOnDemand, method: str) -> ClientsOnDemand:
    """The same clients, any of which is refused when it is loaded and lacks a label."""
    return replace(clients, load=_AllLabelled(load=clients.load, method=method))


@dataclass(frozen=True, kw_only=True)
class _AllLabelled:
    load: Callable[[int], Examples]
    method: str

    def __call__(self, client: int) -> Examples:
        loaded = self.load(client)
        if not (known := labelled(loaded.y)).all():
            raise DataError(
                f"client {client}: row {int(np.argmin(known)) + 1} has no label, and {self.method} learns from labels "
                "alone; remove such rows, or choose a method for unlabelled data, such as fixmatch"
            )
        return loaded


def clients_at(data: ClientData, chosen: Indices) -> ClientData:
    """These clients alone, which become 0, 1, 2, …"""
    sizes = data.sizes[chosen]
    rows = np.concatenate([data.rows_of(client) for client in chosen.tolist()])
    return replace(data, rows=rows, offsets=np.concatenate([[0], np.cumsum(sizes)]))
