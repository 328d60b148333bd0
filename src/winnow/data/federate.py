"""From a data set to a federation's data: hold rows out, spread the rest over clients, spoil some clients' samples.

Each step has random streams of its own, so that changing one setting never shifts another step's numbers.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError, stream, suggest
from winnow.data.client_test_sets import assign_official_tests
from winnow.data.corruptions import Corruption, ValueRanges
from winnow.data.hidden_labels import hide_labels, labelled, open_rows, require_classes, rows_at_server
from winnow.data.on_demand import OnDemand
from winnow.data.partitions import RowPool
from winnow.data.preprocessing import NO_LABEL
from winnow.data.settings import DataSettings, RowsOrShare
from winnow.data.types import AS_GIVEN, CLEAN, ClientData, DataConditions, DataSet, Examples, FederatedData, Indices

CHUNK_BYTES = 1 << 22
"""Samples are spoiled in chunks of this size, so that temporary arrays stay small beside the data and in the cache."""


def federate(
    dataset: DataSet | OnDemand, settings: DataSettings, seed: int, *, in_place: bool = False
) -> FederatedData:
    """Spread a data set over clients as the settings say; the same seed gives the same bits.

    `in_place` uses the data set up: no second copy is made, and what is spoiled is spoiled where it is.
    """
    if isinstance(dataset, OnDemand):
        return dataset.to_federated(reference_at_clients=settings.reference == 0)
    if dataset.classes == 0:
        raise DataError(f"{dataset.name}: no row has a label; models are evaluated on labelled rows, so some must")
    _check_corruptions(dataset, settings.corruptions)
    reference, test, pool = _hold_out(dataset, settings, seed)
    taught, public, pool = _set_apart(dataset, settings, pool, seed)
    held = [Examples(x=dataset.x[rows], y=dataset.y[rows]) for rows in (reference, test, taught)]
    shown = dataset.x[public] if settings.open else None
    clients, dealt, owners = _spread(
        dataset, pool, settings, seed, spare=_unused_test_rows(dataset, reference, test), in_place=in_place
    )
    if clients.y is dataset.y:
        clients.y[np.concatenate([taught, public])] = NO_LABEL  # they are no client's, and stay in its arrays
    corruption_of = _draw_corruptions(settings.corruptions, len(clients), seed)
    _corrupt(clients, corruption_of, settings.corruptions, ValueRanges.of(dataset), seed)
    names = _owner_names(dataset, owners)
    hidden = None if settings.labels is None else hide_labels(clients, settings.labels, seed, names)
    training, local_test = clients, dealt
    if isinstance(settings.local_test, float) and settings.local_test:
        training, local_test = split_local_tests(clients, settings.local_test, seed)
    return FederatedData(
        clients=training,
        reference=held[0],
        test=held[1],
        conditions=_conditions(corruption_of, settings.corruptions),
        local_test=local_test,
        preprocessing=dataset.preprocessing,
        owner_names=names,
        server_labelled=held[2] if len(taught) else None,
        open=shown,
        hidden_labels=hidden,
    )


def _set_apart(dataset: DataSet, settings: DataSettings, pool: Indices, seed: int) -> tuple[Indices, Indices, Indices]:
    """The rows of the pool whose labels the server has, those that are open to all, and what is left for clients."""
    nothing = np.empty(0, np.int64)
    if settings.labels is None and not settings.open:
        return nothing, nothing, pool
    require_classes(dataset)
    at_server = settings.labels is not None and settings.labels.rows
    taught = rows_at_server(dataset, pool, at_server, seed) if at_server else nothing
    public = open_rows(dataset, np.setdiff1d(pool, taught), settings.open, seed)
    return taught, public, np.setdiff1d(pool, np.concatenate([taught, public]))


def _owner_names(dataset: DataSet, owners: Indices | None) -> tuple[str, ...] | None:
    if owners is None or dataset.owner_names is None:
        return None
    return tuple(dataset.owner_names[owner] for owner in owners.tolist())


def _check_corruptions(dataset: DataSet, corruptions: Sequence[Corruption]) -> None:
    for corruption in corruptions:
        if dataset.tokens and corruption.needs_numbers:
            raise DataError(f"corruption {corruption.name} needs numeric features, not tokens; use flipped-labels")


def _hold_out(dataset: DataSet, settings: DataSettings, seed: int) -> tuple[Indices, Indices, Indices]:
    """Disjoint rows for the reference set, the test set and the clients.

    An official test split never reaches a client. It provides the test set, and the reference set too where it is large
    enough for both.
    """
    if settings.left_out:
        return _hold_out_owners(dataset, settings, seed)
    everything = np.arange(len(dataset))
    official = everything if dataset.test_rows is None else dataset.test_rows
    training = everything if dataset.test_rows is None else np.setdiff1d(everything, official)
    if settings.test_owners:
        official = official[_rows_of_owners(dataset, settings.test_owners, "test_owners")[official]]
    test_size, reference_size = (_rows(share, everything, dataset) for share in (settings.test, settings.reference))
    test = _draw(official, test_size, "test", dataset, seed)
    both_fit = test_size + reference_size <= len(official)
    beside_test = np.setdiff1d(official if both_fit or settings.test_owners else training, test)
    reference = _draw(beside_test, reference_size, "reference", dataset, seed)
    held_out = np.concatenate([reference, test])
    return reference, test, np.setdiff1d(training, held_out)


def _hold_out_owners(dataset: DataSet, settings: DataSettings, seed: int) -> tuple[Indices, Indices, Indices]:
    """The labelled rows of the owners left out are the test set; the reference set is drawn from the others' rows."""
    out = _rows_of_owners(dataset, settings.left_out, "left_out")
    training = np.flatnonzero(~out)
    reference = _draw(training, _rows(settings.reference, training, dataset), "reference", dataset, seed)
    test = np.flatnonzero(out & labelled(dataset.y))
    return reference, test, np.setdiff1d(training, reference)


def _rows_of_owners(dataset: DataSet, names: Sequence[str], setting: str) -> NDArray[np.bool_]:
    if dataset.owners is None or dataset.owner_names is None:
        raise DataError(f"{dataset.name}: data.{setting} names owners, and these rows have none; set data.owner")
    for name in names:
        if name not in dataset.owner_names:
            raise DataError(f"{dataset.name}: data.{setting}: {suggest(name, dataset.owner_names)}")
    return np.isin(dataset.owners, [dataset.owner_names.index(name) for name in names])


def held_out_rows(dataset: DataSet, settings: DataSettings, seed: int) -> tuple[Indices, Indices]:
    """The rows that a run with this seed is evaluated on: those of the reference set, and those of the test set."""
    reference, test, _ = _hold_out(dataset, settings, seed)
    return reference, test


def _rows(amount: RowsOrShare, of: Indices, dataset: DataSet) -> int:
    """A share is one of the rows that have labels: a tenth of all might be more than those."""
    return amount if isinstance(amount, int) else max(1, round(amount * int(labelled(dataset.y)[of].sum())))


def _draw(rows: Indices, size: int, purpose: str, dataset: DataSet, seed: int) -> Indices:
    """So many of the rows; of labelled ones, for models are evaluated on these."""
    known = rows[labelled(dataset.y)[rows]]
    if size > len(known):
        which = ("row" if size == 1 else "rows") + ("" if len(known) == len(rows) else " with labels")
        raise DataError(f"{dataset.name}: data.{purpose} needs {size} {which}; only {len(known)} are available")
    return np.sort(stream(seed, "data", "holdout", purpose).permutation(known)[:size])


def _unused_test_rows(dataset: DataSet, reference: Indices, test: Indices) -> Indices:
    """The rows of the official test split that the server does not hold."""
    official = dataset.test_rows if dataset.test_rows is not None else np.empty(0, np.int64)
    return np.setdiff1d(official, np.concatenate([reference, test]))


def _spread(
    dataset: DataSet, pool: Indices, settings: DataSettings, seed: int, *, spare: Indices, in_place: bool
) -> tuple[ClientData, ClientData | None, Indices | None]:
    """The clients' rows: where they are, or as a copy of their own, client after client, without held-out rows.

    Where clients test their models on official rows, these are dealt out of the spare ones; both parts share arrays.
    Last come the owners that clients are, if they are any.
    """
    labels = dataset.y[pool].astype(np.int64) if dataset.classes is not None and dataset.y.ndim == 1 else None
    if labels is not None and (labels == NO_LABEL).any():
        labels = None  # no partition by class knows where to put such rows
    owners = dataset.owners[pool] if dataset.owners is not None else None
    assignment = settings.partition.assign(
        RowPool(size=len(pool), labels=labels, owners=owners), settings.clients, stream(seed, "data", "partition")
    )
    rows, own = pool[assignment.rows], None
    if settings.local_test == "official":
        own = assign_official_tests(dataset, rows, assignment.offsets, spare, stream(seed, "data", "own test"))
    if in_place and dataset.x.flags.writeable and dataset.y.flags.writeable:
        x, y = dataset.x, dataset.y
    else:
        copied = rows if own is None else np.concatenate([rows, own.rows])
        x, y = dataset.x[copied], dataset.y[copied]
        own = None if own is None else replace(own, rows=np.arange(len(rows), len(copied)))
        rows = np.arange(len(rows))
    training = ClientData(x=x, y=y, rows=rows, offsets=assignment.offsets, classes=dataset.classes)
    local_test = None if own is None else replace(training, rows=own.rows, offsets=own.offsets)
    return training, local_test, assignment.owners


def split_local_tests(clients: ClientData, share: float, seed: int) -> tuple[ClientData, ClientData]:
    """Each client's samples in two: those it trains on, and a share, drawn at random, that it keeps for its own tests.

    Only labelled samples can be tested on. A client with two of them or more has at least one of each.
    """
    sizes = clients.sizes
    owner = np.repeat(np.arange(len(sizes)), sizes)
    known = labelled(clients.y)[clients.rows]
    candidates = np.bincount(owner[known], minlength=len(sizes))
    kept = np.minimum(np.maximum(np.rint(share * candidates).astype(np.int64), 1), np.maximum(candidates - 1, 0))
    order = np.lexsort((stream(seed, "data", "own test").random(len(owner)), ~known, owner))
    place = np.arange(len(owner)) - clients.offsets[owner]
    is_kept = np.zeros(len(owner), bool)
    is_kept[order] = place < kept[owner]

    def those(chosen: NDArray[np.bool_]) -> ClientData:
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owner[chosen], minlength=len(sizes)))])
        return replace(clients, rows=clients.rows[chosen], offsets=offsets)

    return those(~is_kept), those(is_kept)


def _draw_corruptions(corruptions: Sequence[Corruption], clients: int, seed: int) -> Indices:
    """The index of each client's corruption, -1 for none. Consecutive runs of one permutation cannot overlap."""
    order = stream(seed, "data", "corrupted clients").permutation(clients)
    ends = np.rint(np.cumsum([0.0, *(corruption.fraction for corruption in corruptions)]) * clients).astype(np.int64)
    corruption_of = np.full(clients, -1, dtype=np.int64)
    for index in range(len(corruptions)):
        corruption_of[order[ends[index] : ends[index + 1]]] = index
    return corruption_of


def _corrupt(
    clients: ClientData, corruption_of: Indices, corruptions: Sequence[Corruption], ranges: ValueRanges, seed: int
) -> None:
    """Apply each corruption to the rows of its clients, in place."""
    of_row = np.repeat(corruption_of, clients.sizes)
    step = max(1, CHUNK_BYTES // max(1, clients.x[0].nbytes))
    for index, corruption in enumerate(corruptions):
        earlier = sum(other.name == corruption.name for other in corruptions[:index])
        rng = stream(seed, "data", "corruption", corruption.name, earlier)
        rows = clients.rows[of_row == index]
        for start in range(0, len(rows), step):
            chunk = rows[start : start + step]
            spoiled = corruption.apply(Examples(x=clients.x[chunk], y=clients.y[chunk]), ranges, rng)
            clients.x[chunk] = spoiled.x
            clients.y[chunk] = spoiled.y


def _conditions(corruption_of: Indices, corruptions: Sequence[Corruption]) -> DataConditions:
    """Conditions by name; members of a family that appears twice are told apart by their settings."""
    labels = [_label(corruption, corruptions) for corruption in corruptions]
    untouched = CLEAN if corruptions else AS_GIVEN
    distinct = (untouched, *dict.fromkeys(labels))
    place = np.array([distinct.index(label) for label in (*labels, untouched)], dtype=np.int64)
    return DataConditions(labels=distinct, of_client=place[corruption_of])


def _label(corruption: Corruption, corruptions: Sequence[Corruption]) -> str:
    name = corruption.name
    if sum(other.name == name for other in corruptions) == 1:
        return name
    settings = corruption.model_dump(exclude={"name", "fraction"})
    return f"{name} " + ", ".join(f"{key} {value}" for key, value in settings.items())
