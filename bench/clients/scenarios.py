"""Federations of 20 unlike clients of which some have bad data, and which these are."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bench.clients.sets import QualitySet
from winnow.core import stream
from winnow.data import DataSet

CLIENTS = 20
MOST_BAD = 6
REFERENCE, TEST = 500, 500
SIZE_SPREAD = 0.4
"""Standard deviation of the logarithm of clients' sizes."""
COPIED_ROWS = 10
TINY = (3, 8)
IMAGE_WAYS = ("noise", "foreign", "labels 40 %", "labels 100 %", "flipped", "copies", "labels 20 %", "tiny")
TABLE_WAYS = ("scaled", "shifted", "swapped", "zero-filled", *IMAGE_WAYS)
WITHOUT_GOAL = ("labels 20 %", "tiny")
KIND = {
    **dict.fromkeys(("scaled", "shifted", "swapped", "zero-filled", "noise", "foreign"), "inputs"),
    **dict.fromkeys(("labels 20 %", "labels 40 %", "labels 100 %", "flipped"), "labels"),
    "copies": "copies",
}
"""The kind of evidence that is right for each way."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """One client's samples."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Scenario:
    """A federation, and who in it has bad data."""

    dataset: DataSet
    bad: NDArray[np.bool_]


def ways(quality_set: QualitySet) -> tuple[str, ...]:
    return TABLE_WAYS if quality_set.numbers else IMAGE_WAYS


def scenario(quality_set: QualitySet, alpha: float, way: str, seed: int) -> Scenario:
    """Class mixes are drawn from Dirichlet(alpha), sizes from a lognormal; 1 to 6 clients are spoiled in one way.

    Splits and who is bad are the same for all ways of a seed. Reference and test rows are clean.
    """
    rng = stream(seed, "bench", "clients", quality_set.name, int(10 * alpha))
    order = rng.permutation(len(quality_set.x))
    held_out, pool = order[: REFERENCE + TEST], order[REFERENCE + TEST :]
    rows = _split(quality_set.y[pool], quality_set.classes, alpha, rng)
    bad = np.zeros(CLIENTS, bool)
    bad[rng.permutation(CLIENTS)[: rng.integers(1, MOST_BAD + 1)]] = True
    parts = []
    for client, own in enumerate(rows):
        chosen = pool[own]
        part = Rows(x=quality_set.x[chosen], y=quality_set.y[chosen])
        spoiler = stream(seed, "bench", "clients", quality_set.name, way, client)
        parts.append(_spoiled(part, chosen, quality_set, way, spoiler) if bad[client] else part)
    clean = Rows(x=quality_set.x[held_out], y=quality_set.y[held_out])
    return Scenario(dataset=_data_set(quality_set, parts, clean), bad=bad)


def _data_set(quality_set: QualitySet, parts: list[Rows], held_out: Rows) -> DataSet:
    sizes = [len(part.y) for part in parts]
    return DataSet(
        name=quality_set.name,
        x=np.concatenate([*(part.x for part in parts), held_out.x]),
        y=np.concatenate([*(part.y for part in parts), held_out.y]),
        classes=quality_set.classes,
        owners=np.concatenate([np.repeat(np.arange(CLIENTS), sizes), np.full(len(held_out.y), -1)]),
        owner_names=tuple(f"owner {client}" for client in range(CLIENTS)),
        test_rows=np.arange(sum(sizes), sum(sizes) + len(held_out.y)),
    )


def _split(labels: NDArray[np.int64], classes: int, alpha: float, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Rows of each client. Where a class has run out, the rest of a client's rows comes from what is left."""
    size = rng.lognormal(0, SIZE_SPREAD, CLIENTS)
    size = np.floor(size / size.sum() * len(labels)).astype(int)
    left = [list(rng.permutation(np.flatnonzero(labels == label))) for label in range(classes)]
    rows = []
    for client in rng.permutation(CLIENTS):
        wanted = rng.multinomial(size[client], rng.dirichlet(np.full(classes, alpha)))
        own = [left[label].pop() for label in range(classes) for _ in range(min(wanted[label], len(left[label])))]
        while len(own) < size[client]:
            own.append(max(left, key=len).pop())
        rows.append((client, np.array(own)))
    return [own for _, own in sorted(rows, key=lambda each: each[0])]


def _spoiled(clean: Rows, rows: NDArray[np.int64], quality_set: QualitySet, way: str, rng: np.random.Generator) -> Rows:
    if way in ("noise", "foreign"):
        return replace(clean, x=getattr(quality_set, "noisy" if way == "noise" else "foreign")[rows])
    if way.startswith("labels"):
        share = float(way.split()[1]) / 100
        random = rng.integers(quality_set.classes, size=len(rows))
        return replace(clean, y=np.where(rng.random(len(rows)) < share, random, clean.y))
    return WAYS[way](clean, quality_set, rng)


def _columns(quality_set: QualitySet, rng: np.random.Generator, count: int) -> list[int]:
    return [int(column) for column in rng.choice(quality_set.numbers, count, replace=False)]


def _scaled(clean: Rows, quality_set: QualitySet, rng: np.random.Generator) -> Rows:
    """One column's raw values times ten: zero is what a raw zero has become."""
    assert quality_set.zero is not None
    (column,) = _columns(quality_set, rng, 1)
    x = clean.x.copy()
    x[:, column] = quality_set.zero[column] + 10 * (x[:, column] - quality_set.zero[column])
    return replace(clean, x=x)


def _shifted(clean: Rows, quality_set: QualitySet, rng: np.random.Generator) -> Rows:
    """One column is one standard deviation too high."""
    (column,) = _columns(quality_set, rng, 1)
    x = clean.x.copy()
    x[:, column] += 1
    return replace(clean, x=x)


def _swapped(clean: Rows, quality_set: QualitySet, rng: np.random.Generator) -> Rows:
    """Four columns have exchanged their raw values in pairs: raw = width · (x - zero)."""
    assert quality_set.zero is not None
    assert quality_set.width is not None
    four = _columns(quality_set, rng, 4)
    x, zero, width = clean.x.copy(), quality_set.zero[four], quality_set.width[four]
    x[:, four] = (width * (x[:, four] - zero))[:, [1, 0, 3, 2]] / width + zero
    return replace(clean, x=x)


def _zero_filled(clean: Rows, quality_set: QualitySet, rng: np.random.Generator) -> Rows:
    assert quality_set.zero is not None
    (column,) = _columns(quality_set, rng, 1)
    x = clean.x.copy()
    x[:, column] = quality_set.zero[column]
    return replace(clean, x=x)


def _flipped(clean: Rows, quality_set: QualitySet, rng: np.random.Generator) -> Rows:
    """The client's two most frequent classes have exchanged their labels."""
    one, other = np.argsort(-np.bincount(clean.y, minlength=quality_set.classes), kind="stable")[:2]
    y = np.where(clean.y == one, other, np.where(clean.y == other, one, clean.y))
    return replace(clean, y=y)


def _copies(clean: Rows, quality_set: QualitySet, rng: np.random.Generator) -> Rows:
    """A few rows again and again."""
    chosen = rng.choice(rng.permutation(len(clean.y))[:COPIED_ROWS], len(clean.y))
    return Rows(x=clean.x[chosen], y=clean.y[chosen])


def _tiny(clean: Rows, quality_set: QualitySet, rng: np.random.Generator) -> Rows:
    chosen = rng.permutation(len(clean.y))[: rng.integers(*TINY, endpoint=True)]
    return Rows(x=clean.x[chosen], y=clean.y[chosen])


WAYS: dict[str, Callable[[Rows, QualitySet, np.random.Generator], Rows]] = {
    "scaled": _scaled,
    "shifted": _shifted,
    "swapped": _swapped,
    "zero-filled": _zero_filled,
    "flipped": _flipped,
    "copies": _copies,
    "tiny": _tiny,
}
