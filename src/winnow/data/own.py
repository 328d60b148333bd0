"""The user's own data: arrays, torch data sets, .npz, .csv and .parquet files."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winnow.core import DataError
from winnow.data.arrays import DataSet, Indices, Raw
from winnow.data.settings import DataSettings, Task
from winnow.data.tables import Table, check_columns, open_table

TABLES = (".csv", ".parquet")


class MapStyle(Protocol):
    """What a map-style torch `Dataset` offers: a length, and a pair of features and target by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def from_arrays(
    x: ArrayLike, y: ArrayLike, *, classes: int | None = None, owners: ArrayLike | None = None, name: str = "arrays"
) -> DataSet:
    """A data set of arrays as they are: x is not scaled.

    Integers and text in y are class labels, numbered 0, 1, … in sorted order; with `classes` they are already such
    numbers. Floating-point y is a regression.
    """
    raw = from_values(np.asarray(x), np.asarray(y), classes=classes, owners=owners, where=name)
    features = raw.x.astype(np.float32, copy=False)
    targets = raw.y.astype(np.float32, copy=False) if raw.classes is None else raw.y.astype(np.int64, copy=False)
    return DataSet(name=name, x=features, y=targets, classes=raw.classes, owners=raw.owners)


def from_torch(dataset: MapStyle, *, classes: int | None = None, name: str = "dataset") -> DataSet:
    """A data set out of any map-style torch `Dataset` that gives a pair (features, target) for each index."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(f"{name} has no length or no indices; pass a map-style torch Dataset")
    if len(dataset) == 0:
        raise DataError(f"{name}: there are no rows")
    try:
        pairs = [dataset[index] for index in range(len(dataset))]
        x = np.stack([np.asarray(pair[0]) for pair in pairs])
        y = np.stack([np.asarray(pair[1]) for pair in pairs])
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise DataError(f"{name}: samples must be pairs (features, target), all of one shape: {error}") from error
    return from_arrays(x, y, classes=classes, name=name)


def read_own(path: Path, settings: DataSettings) -> Raw:
    """The user's file, before scaling."""
    if not path.is_file():
        raise DataError(f"there is no file {path}; check data.path")
    if path.suffix.lower() == ".npz":
        return _read_npz(path, settings.task)
    if path.suffix.lower() in TABLES:
        return _read_table(open_table(path), settings)
    raise DataError(f"{path}: files of kind '{path.suffix}' are not read; use .npz, .csv or .parquet")


def from_values(x: NDArray[Any], y: NDArray[Any], *, classes: int | None, owners: ArrayLike | None, where: str) -> Raw:
    """Numbers checked, labels and owners numbered from zero."""
    _check_finite(x, "x", where)
    if x.ndim < 2:
        raise DataError(f"{where}: x must be [rows, …] with at least two dimensions, not {x.shape}")
    if len(x) == 0:
        raise DataError(f"{where}: there are no rows")
    numbered = None if owners is None else _numbered_owners(np.asarray(owners))
    if classes is None and y.dtype.kind == "f":
        _check_finite(y, "y", where)
        return Raw(x=x, y=y.reshape(len(y), -1), classes=None, owners=numbered)
    if y.ndim != 1:
        raise DataError(f"{where}: class labels must be one a row, but y is {y.shape}; use floats for a regression")
    if classes is None:
        labels = _numbered(y)
        return Raw(x=x, y=labels, classes=int(labels.max(initial=-1)) + 1, owners=numbered)
    return Raw(x=x, y=_checked_labels(y, classes, where), classes=classes, owners=numbered)


def _read_npz(path: Path, task: Task) -> Raw:
    try:
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as arrays:
            held = {key: arrays[key] for key in ("x", "y", "owners") if key in arrays}
            names = sorted(arrays)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not a readable .npz of plain arrays: {error}") from error
    for key in ("x", "y"):
        if key not in held:
            raise DataError(f"{path} has no array '{key}'; it holds {', '.join(names) or 'nothing'}")
    y = _as_task(held["y"], task, path)
    return from_values(held["x"], y, classes=None, owners=held.get("owners"), where=str(path))


def _read_table(table: Table, settings: DataSettings) -> Raw:
    if not settings.targets:
        raise DataError(f'{table.path}: say which columns to predict: data.targets = ["…"]')
    check_columns(table, settings.targets, "a target")
    check_columns(table, settings.features or (), "a feature")
    check_columns(table, [settings.owner] if settings.owner else (), "the owner")
    apart = {*settings.targets, settings.owner}
    features = settings.features or [name for name in table.columns if name not in apart]
    if not features:
        raise DataError(f"{table.path}: no columns are left for features")
    y = _table_targets(table, settings.targets, settings.task)
    owners = table.values(settings.owner) if settings.owner else None
    return from_values(table.numbers(features), y, classes=None, owners=owners, where=str(table.path))


def _table_targets(table: Table, targets: Sequence[str], task: Task) -> NDArray[Any]:
    if len(targets) > 1 and task == "classification":
        raise DataError(f"{table.path}: a classification has one target column, not {len(targets)}")
    if len(targets) > 1 or task == "regression":
        return table.numbers(targets)
    values = table.values(targets[0])
    return table.numbers(targets) if values.dtype.kind == "f" and task == "auto" else _as_task(values, task, table.path)


def _as_task(y: NDArray[Any], task: Task, path: Path) -> NDArray[Any]:
    """Targets in a type that says what they are: floats for a regression, anything else for classes."""
    if task == "regression":
        if y.dtype.kind not in "iufb":
            raise DataError(f"{path}: a regression needs numbers as targets, not {y.dtype}")
        return y.astype(np.float64)
    if task == "classification" and y.dtype.kind == "f":
        _check_finite(y, "y", str(path))
        return y.astype(np.str_)
    return y


def _numbered_owners(owners: NDArray[Any]) -> Indices:
    """Owners numbered from zero; negative numbers stay -1, nobody."""
    if owners.dtype.kind not in "if":
        return _numbered(owners)
    numbered = np.full(len(owners), -1, dtype=np.int64)
    numbered[owners >= 0] = _numbered(owners[owners >= 0])
    return numbered


def _numbered(names: NDArray[Any]) -> Indices:
    """0, 1, … for the distinct values in sorted order."""
    return np.unique(names, return_inverse=True)[1].astype(np.int64).reshape(-1)


def _checked_labels(y: NDArray[Any], classes: int, where: str) -> Indices:
    try:
        labels = y.astype(np.int64)
        whole = bool((labels == y).all())
    except (TypeError, ValueError):
        whole = False
    if not whole or labels.min(initial=0) < 0 or labels.max(initial=0) >= classes:
        raise DataError(f"{where}: with classes = {classes}, y must hold whole numbers from 0 to {classes - 1}")
    return labels


def _check_finite(values: NDArray[Any], what: str, where: str) -> None:
    if values.dtype.kind not in "iufb":
        raise DataError(f"{where}: {what} must hold numbers, not {values.dtype}")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        place = ", ".join(map(str, np.argwhere(~np.isfinite(values))[0]))
        raise DataError(f"{where}: {what}[{place}] is not a finite number; fill in or remove such rows first")
