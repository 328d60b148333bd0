"""Clients whose samples are loaded or generated only when they are needed, so that a population may be of any size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winnow.core import DataError, WinnowError
from winnow.data.client_files import REFERENCE, TEST, ClientFiles, read_index, read_pair
from winnow.data.fit_preprocessing import Reading, data_set_of
from winnow.data.hidden_labels import labelled
from winnow.data.preprocessing import InputSpec, Preprocessing, TargetSpec
from winnow.data.settings import COLUMN_SETTINGS, DataSettings, ProblemType
from winnow.data.types import AS_GIVEN, ClientsOnDemand, DataConditions, Examples, FederatedData, Indices

LoadClient: TypeAlias = Callable[[int], Any]
"""Gives the features and targets of a client, a pair of arrays, by its number: the same ones every time."""

PREPARTITIONED = "data that are already partitioned by client"


@dataclass(frozen=True, kw_only=True, eq=False)
class OnDemand:
    """A population that is divided into clients already, and what is known of it without loading anything.

    `sizes` gives the number of samples of each client, or one number for all. `classes` is None for a regression. The
    server holds `reference` and `test`, pairs (x, y); the reference set may be left out where clients hold it.
    """

    clients: int
    sizes: ArrayLike
    load: LoadClient
    classes: int | None
    reference: tuple[ArrayLike, ArrayLike] | None = None
    test: tuple[ArrayLike, ArrayLike] | None = None
    tokens: bool = False
    name: str = "on-demand"
    client_names: Sequence[str] = ()
    """What clients are called; none where they have only numbers."""

    def __post_init__(self) -> None:
        if not isinstance(self.clients, int | np.integer) or self.clients < 1:
            raise DataError(f"{self.name}: clients must be a whole number, 1 or greater, not {self.clients!r}")
        if not callable(self.load):
            raise DataError(f"{self.name}: load must be a function that takes a client's number")
        given = np.asarray(self.sizes)
        if given.dtype.kind not in "iu" or given.shape not in ((), (self.clients,)):
            raise DataError(
                f"{self.name}: sizes must be one whole number, or {self.clients} of them, one a client;"
                f" it is {given.dtype} of shape {given.shape}"
            )
        if given.min() < 1:
            raise DataError(
                f"{self.name}: client {int(np.argmin(given))} has size {given.min()}; remove it or give it samples"
            )

        if len(self.client_names) not in (0, self.clients):
            raise DataError(f"{self.name}: client_names has {len(self.client_names)} names for {self.clients} clients")

    def to_federated(self, *, reference_at_clients: bool) -> FederatedData:
        """The clients, ready to be loaded, and what the server holds."""
        reference, test = self._held("reference", self.reference), self._held("test", self.test)
        if reference is None and not reference_at_clients:
            raise DataError(f"{self.name}: there is no reference set; pass one, or set reference_clients")
        like = reference or test or _loaded(self.load, 0, self.classes, tokens=self.tokens)
        nothing = Examples(x=like.x[:0], y=like.y[:0])
        sizes = np.full(self.clients, self.sizes, np.int64)
        load = _CheckedLoad(load=self.load, sizes=sizes, classes=self.classes, tokens=self.tokens, template=nothing)
        return FederatedData(
            clients=ClientsOnDemand(sizes=sizes, load=load, classes=self.classes, template=nothing),
            reference=reference or nothing,
            test=test or nothing,
            conditions=DataConditions(labels=(AS_GIVEN,), of_client=np.zeros(self.clients, np.int64)),
            preprocessing=Preprocessing(
                array=InputSpec(shape=nothing.x.shape[1:], kind="token" if self.tokens else "number"),
                classes=None if self.classes is None else tuple(range(self.classes)),
                targets=() if self.classes is not None else (TargetSpec(),) * nothing.y.shape[1],
            ),
            owner_names=tuple(self.client_names) or None,
        )

    def _held(self, part: str, pair: tuple[ArrayLike, ArrayLike] | None) -> Examples | None:
        if pair is None:
            return None
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise DataError(f"{self.name}: {part} must be a pair (x, y)")
        x, y = map(np.asarray, pair)
        held = _understood(x, y, f"{self.name}, {part} set", self.classes, tokens=self.tokens)
        if not (known := labelled(held.y)).all():
            raise DataError(f"{self.name}: row {int(np.argmin(known)) + 1} of the {part} set has no label; remove it")
        return held


@dataclass(frozen=True, kw_only=True, eq=False)
class _CheckedLoad:
    """A user's function, none of whose mistakes gets past here without the number of its client."""

    load: LoadClient
    sizes: Indices
    classes: int | None
    tokens: bool
    template: Examples

    def __call__(self, client: int) -> Examples:
        loaded = _loaded(self.load, client, self.classes, tokens=self.tokens)
        if len(loaded) != self.sizes[client]:
            raise DataError(f"client {client}: {len(loaded)} rows were loaded, but sizes says {self.sizes[client]}")
        for what, own, common in (("x", loaded.x, self.template.x), ("y", loaded.y, self.template.y)):
            if own.shape[1:] != common.shape[1:]:
                raise DataError(
                    f"client {client}: rows of {what} have shape {own.shape[1:]}; other clients' {common.shape[1:]}"
                )
        return loaded


def _loaded(load: LoadClient, client: int, classes: int | None, *, tokens: bool) -> Examples:
    """What the function gives for a client, in the types that models take."""
    where = f"client {client}"
    try:
        pair = load(client)
        parts = [np.asarray(part) for part in pair] if isinstance(pair, tuple | list) else []
    except WinnowError as error:
        raise DataError(f"{where}: {error}") from error
    except Exception as error:  # a user's function may fail in any way
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise DataError(f"{where}: its data could not be loaded: {reason}") from error
    if len(parts) != 2:
        raise DataError(f"{where}: load must give a pair of arrays (x, y), not {type(pair).__name__}")
    return _understood(parts[0], parts[1], where, classes, tokens=tokens)


def _understood(x: NDArray[Any], y: NDArray[Any], where: str, classes: int | None, *, tokens: bool) -> Examples:
    task: ProblemType = "regression" if classes is None else "classification"
    checked = data_set_of(x, y, Reading(name=where, classes=classes, task=task, tokens=tokens, scale="none"))
    return Examples(x=checked.x, y=checked.y)


def from_folder(folder: Path, settings: DataSettings) -> OnDemand:
    """The clients of a folder. What the server holds tells what is to be learned."""
    files, index = ClientFiles.of(folder), read_index(folder)
    reference, test = (read_pair(folder / name) if (folder / name).is_file() else None for name in (REFERENCE, TEST))
    targets = [held[1] for held in (reference, test) if held is not None]
    if not targets:
        raise DataError(f"{folder} has neither {REFERENCE} nor {TEST}; put one there, with arrays x and y")
    return OnDemand(
        clients=len(files),
        sizes=files.sizes(),
        load=files,
        classes=int(index["classes"]) if "classes" in index else _classes(targets, settings.task, folder),
        reference=reference,
        test=test,
        tokens=settings.tokens,
        name=settings.name,
        client_names=files.owner_names(),
    )


def _classes(targets: Sequence[NDArray[Any]], task: ProblemType, folder: Path) -> int | None:
    """How many classes the server's sets have; None for a regression."""
    kinds = {y.dtype.kind for y in targets}
    if task == "regression" or (task == "auto" and kinds == {"f"}):
        return None
    if not kinds <= set("iufb"):
        raise DataError(f"{folder}: labels must be whole numbers, 0 or greater")
    return int(max(y.max(initial=0) for y in targets)) + 1


def check_prepartitioned(settings: DataSettings, clients: int) -> None:
    """Refuse settings that say how to divide, to hold out, to scale or to spoil, and another number of clients."""
    settings.require_unset(
        (
            *("partition", "corruptions", "reference", "test", "scale", "preprocessing", "local_test"),
            *("labels", "open", "left_out", "test_owners"),
            *COLUMN_SETTINGS,
        ),
        PREPARTITIONED,
    )
    if settings.clients != clients:
        raise DataError(f"data.clients = {settings.clients}, but the data have {clients} clients; remove data.clients")
