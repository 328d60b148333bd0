"""The four data sets: rows as a model sees them, and what they look like noisy or replaced by something foreign."""

import csv
import gzip
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.clients.cifar_features import features
from winnow.core import DataError, stream
from winnow.data import DataSet, DataSettings, load
from winnow.data.directories import data_directories

ROWS = 9_500
CIFAR_ROWS, FOREIGN_ROWS = 6_500, 3_000
MNIST_NOISE, CIFAR_NOISE, TABLE_NOISE = 0.3, 0.15, 1.0
"""Standard deviations of additive noise: pixels lie in 0 … 1, columns of tables have a standard deviation of 1."""
ADULT_NUMBERS = (0, 2, 4, 10, 11, 12)
CREDIT_CATEGORIES = ("SEX", "EDUCATION", "MARRIAGE")


@dataclass(frozen=True, kw_only=True, eq=False)
class QualitySet:
    """A data set, clean, with the same rows noisy, and rows of another set in the same shape."""

    name: str
    x: NDArray[np.float32]
    y: NDArray[np.int64]
    classes: int
    noisy: NDArray[np.float32]
    foreign: NDArray[np.float32]
    numbers: tuple[int, ...] = ()
    """Columns of a table that hold numbers, those without that are mostly zero: zero-filling these spoils nothing."""
    zero: NDArray[np.float32] | None = None
    """What a raw zero becomes in each column of numbers."""
    width: NDArray[np.float32] | None = None
    """What each of these was divided by."""


def adult(cache: Path) -> QualitySet:
    own = _adult()
    return replace(own, foreign=_cut(_credit().x, own.x))


def credit(cache: Path) -> QualitySet:
    own = _credit()
    return replace(own, foreign=_cut(_adult().x, own.x))


def _adult() -> QualitySet:
    with gzip.open(_file("tabular/adult.data.gz"), "rt") as lines:
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines) if len(row) == 15]
    labels = np.array([row[14] == ">50K" for row in rows], np.int64)
    chosen = _chosen(len(rows), ROWS)
    rows, labels = [rows[row] for row in chosen], labels[chosen]
    numbers = np.array([[float(row[column]) for column in ADULT_NUMBERS] for row in rows])
    categories = [[row[column] for row in rows] for column in range(14) if column not in ADULT_NUMBERS]
    return _table("adult", numbers, categories, labels)


def _credit() -> QualitySet:
    with gzip.open(_file("tabular/UCI_Credit_Card.csv.gz"), "rt") as lines:
        table = list(csv.DictReader(lines))
    chosen = _chosen(len(table), ROWS)
    table = [table[row] for row in chosen]
    *columns, target = list(table[0])[1:]
    numeric = [column for column in columns if column not in CREDIT_CATEGORIES]
    numbers = np.array([[float(row[column]) for column in numeric] for row in table])
    categories = [[row[column] for row in table] for column in CREDIT_CATEGORIES]
    return _table("credit", numbers, categories, np.array([int(row[target]) for row in table]))


def mnist(cache: Path) -> QualitySet:
    images, labels = _known("mnist")
    chosen = _chosen(len(images), ROWS)
    x = images[chosen]
    noise = stream(0, "bench", "clients", "noise").normal(0, MNIST_NOISE, x.shape)
    grey = _known("cifar10")[0][_chosen(len(_known("cifar10")[0]), len(x))].mean(axis=1, keepdims=True)
    return QualitySet(
        name="mnist",
        x=x,
        y=labels[chosen],
        classes=10,
        noisy=np.clip(x + noise, 0, 1).astype(np.float32),
        foreign=grey[:, :, 2:-2, 2:-2],
    )


def cifar10(cache: Path) -> QualitySet:
    images, labels = _known("cifar10")
    chosen = _chosen(len(images), CIFAR_ROWS)
    clean = images[chosen]
    noise = stream(0, "bench", "clients", "noise").normal(0, CIFAR_NOISE, clean.shape)
    digits = _known("mnist")[0][:FOREIGN_ROWS]
    foreign = np.repeat(np.pad(digits, ((0, 0), (0, 0), (2, 2), (2, 2))), 3, axis=1)
    x, noisy, strange = (
        features((pixels * 255).astype(np.uint8), cache / f"cifar10-{name}.npy")
        for name, pixels in (("clean", clean), ("noisy", np.clip(clean + noise, 0, 1)), ("foreign", foreign))
    )
    strange = strange[np.arange(len(x)) % len(strange)]
    mean, width = x.mean(axis=0), x.std(axis=0) + 1e-6
    x, noisy, strange = ((each - mean) / width for each in (x, noisy, strange))
    return QualitySet(name="cifar10", x=x, y=labels[chosen], classes=10, noisy=noisy, foreign=strange)


SETS: dict[str, Callable[[Path], QualitySet]] = {
    "adult": adult,
    "credit": credit,
    "mnist": mnist,
    "cifar10": cifar10,
}


TABLES = ("adult", "credit")


def _table(name: str, numbers: NDArray[Any], categories: list[list[str]], labels: NDArray[np.int64]) -> QualitySet:
    """Numbers standardised, categories one-hot."""
    rng = stream(0, "bench", "clients", name)
    mean, width = numbers.mean(axis=0), numbers.std(axis=0)
    hot = [np.array(cells)[:, None] == np.unique(cells) for cells in categories]
    x = np.concatenate([(numbers - mean) / width, *hot], axis=1).astype(np.float32)
    noise = np.zeros_like(x)
    noise[:, : numbers.shape[1]] = rng.normal(0, TABLE_NOISE, numbers.shape)
    return QualitySet(
        name=name,
        x=x,
        y=labels,
        classes=2,
        noisy=x + noise,
        foreign=x,
        numbers=tuple(np.flatnonzero((numbers == 0).mean(axis=0) < 0.5).tolist()),
        zero=(-mean / width).astype(np.float32),
        width=width.astype(np.float32),
    )


def _cut(rows: NDArray[np.float32], shape: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of another table as if they were of this one: as many columns, repeated if they do not suffice."""
    wide = np.tile(rows, (1, -(-shape.shape[1] // rows.shape[1])))[:, : shape.shape[1]]
    return wide[np.arange(len(shape)) % len(wide)]


def _known(name: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    dataset = load(DataSettings(name=name, scale="none"))
    assert isinstance(dataset, DataSet)
    return np.asarray(dataset.x / np.float32(255), np.float32), dataset.y.astype(np.int64)


def _chosen(total: int, wanted: int) -> NDArray[np.int64]:
    return stream(0, "bench", "clients", "rows").permutation(total)[:wanted]


def _file(name: str) -> Path:
    for directory in data_directories():
        if (directory / name).is_file():
            return directory / name
    raise DataError(f"there is no {name} in {', '.join(map(str, data_directories()))}; set WINNOW_DATA")
