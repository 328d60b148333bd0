"""The user's own data: arrays, torch data sets, .npz, .csv and .parquet files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winnow.core import DataError
from winnow.data.client_files import count_clients
from winnow.data.file_io import OWN_FILE_TYPES, own_file_type, read_npz
from winnow.data.on_demand import OnDemand, check_prepartitioned
from winnow.data.own_arrays import raw_from_arrays
from winnow.data.preprocessing import check_numbers
from winnow.data.scaling import to_data_set, unscaled
from winnow.data.settings import COLUMN_SETTINGS, DataSettings, ProblemType, Scale
from winnow.data.tables import DataTable, check_columns, check_complete, open_table
from winnow.data.types import DataSet, RawDataSet

Pair: TypeAlias = tuple[NDArray[Any], NDArray[Any]]


class MapStyleDataset(Protocol):
    """What a map-style torch `Dataset` offers: a length, and a pair of features and target by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    *,
    classes: int | None = None,
    owners: ArrayLike | None = None,
    name: str = "arrays",
    task: ProblemType = "auto",
    scale: Scale = "default",
    tokens: bool = False,
) -> DataSet:
    """A data set of arrays, which are not scaled unless it is asked for.

    Integers and text in y are class labels, numbered 0, 1, … in sorted order; with `classes` they are already such
    numbers. Floating-point y is a regression. `task` overrides that.
    """
    raw = raw_from_arrays(
        np.asarray(x), np.asarray(y), where=name, classes=classes, owners=owners, task=task, tokens=tokens
    )
    return to_data_set(raw, name, scale, default=unscaled)


def from_torch(
    dataset: MapStyleDataset,
    *,
    classes: int | None = None,
    name: str = "dataset",
    task: ProblemType = "auto",
    scale: Scale = "default",
    tokens: bool = False,
) -> DataSet:
    """A data set out of any map-style torch `Dataset` that gives a pair (features, target) for each index."""
    x, y = stack_pairs(dataset, name)
    return from_arrays(x, y, classes=classes, name=name, task=task, scale=scale, tokens=tokens)


def stack_pairs(dataset: MapStyleDataset, name: str) -> Pair:
    """All features and all targets of a map-style torch `Dataset`."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(f"{name} has no length or cannot be indexed; pass a map-style torch Dataset")
    if len(dataset) == 0:
        raise DataError(f"{name}: there are no rows")
    try:
        pairs = [dataset[index] for index in range(len(dataset))]
        return np.stack([np.asarray(pair[0]) for pair in pairs]), np.stack([np.asarray(pair[1]) for pair in pairs])
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise DataError(f"{name}: samples must be pairs (features, target), all of one shape: {error}") from error


def apply_settings(given: Pair | DataSet | OnDemand, settings: DataSettings) -> DataSet | OnDemand:
    """Data that were passed in Python, understood and scaled as the settings say."""
    if isinstance(given, OnDemand):
        check_prepartitioned(settings, given.clients)
        settings.require_unset(("task", "tokens"), "OnDemandData, which sets it itself")
        return given
    settings.require_unset(COLUMN_SETTINGS, "data without named columns")
    if isinstance(given, tuple):
        x, y = given
        return from_arrays(x, y, name=settings.name, task=settings.task, scale=settings.scale, tokens=settings.tokens)
    settings.require_unset(("task", "tokens"), "a DataSet, which sets it itself")
    fields = {name: value for name, value in vars(given).items() if name != "name"}
    return to_data_set(RawDataSet(**fields, tokens=given.tokens), given.name, settings.scale, default=unscaled)


def check_own_file(path: Path, settings: DataSettings) -> None:
    """Refuse a file that is not there or of no known kind, and settings that it has no use for."""
    if path.is_dir():
        check_prepartitioned(settings, count_clients(path))
        return
    if not path.is_file():
        raise DataError(f"there is no file {path}; check data.path")
    kind = own_file_type(path)
    if kind is None:
        raise DataError(f"{path}: unsupported file type; use {', '.join(OWN_FILE_TYPES[:-1])} or {OWN_FILE_TYPES[-1]}")
    if kind == ".npz":
        settings.require_unset(COLUMN_SETTINGS, "an .npz file, which has no columns")
    elif not settings.targets:
        raise DataError(f'{path}: set the columns to predict: data.targets = ["…"]')


def read_own_file(path: Path, settings: DataSettings) -> RawDataSet:
    """The user's file, before scaling."""
    return _read_npz(path, settings) if own_file_type(path) == ".npz" else _read_table(open_table(path), settings)


def _read_npz(path: Path, settings: DataSettings) -> RawDataSet:
    held = read_npz(path, ("x", "y"), ("owners",))
    return raw_from_arrays(
        held["x"],
        held["y"],
        owners=held.get("owners"),
        where=str(path),
        task=settings.task,
        tokens=settings.tokens,
    )


def _read_table(table: DataTable, settings: DataSettings) -> RawDataSet:
    check_columns(table, settings.targets, "a target")
    check_columns(table, settings.features or (), "a feature")
    check_columns(table, [settings.owner] if settings.owner else (), "the owner")
    apart = {*settings.targets, settings.owner}
    features = settings.features or [name for name in table.columns if name not in apart]
    if not features:
        raise DataError(f"{table.where}: no columns remain for features")
    y = _table_targets(table, settings.targets, settings.task)
    return raw_from_arrays(
        _numbers(table, features),
        y,
        owners=check_complete(table.column(settings.owner), settings.owner, table.where) if settings.owner else None,
        where=table.where,
        task=settings.task,
        tokens=settings.tokens,
    )


def _table_targets(table: DataTable, targets: Sequence[str], task: ProblemType) -> NDArray[Any]:
    if len(targets) > 1 and task == "classification":
        raise DataError(f"{table.where}: a classification has one target column, not {len(targets)}")
    if len(targets) > 1 or task == "regression":
        return _numbers(table, targets)
    return check_complete(table.column(targets[0]), targets[0], table.where)


def _numbers(table: DataTable, names: Sequence[str]) -> NDArray[np.float64]:
    held = zip(names, table.read(names), strict=True)
    return np.stack(
        [check_numbers(check_complete(v, name, table.where), name, table.where) for name, v in held], axis=1
    )
