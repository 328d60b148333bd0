"""The user's own data: arrays, torch data sets, .npz, .csv and .parquet files."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from winnow.core import DataError
from winnow.data.client_files import count_clients
from winnow.data.dataframe_adapters import array_of, as_table, from_records
from winnow.data.file_formats import OWN_FILE_TYPES, own_file_type, read_npz
from winnow.data.fit_preprocessing import Reading, as_rows, data_set_of, known_data_set
from winnow.data.on_demand import OnDemand, check_prepartitioned
from winnow.data.scaling import unscaled
from winnow.data.settings import COLUMN_SETTINGS, DataSettings, ProblemType, Scale
from winnow.data.tables import DataTable, open_table
from winnow.data.text import TextSettings
from winnow.data.text_sets import read_text_folder
from winnow.data.types import DataSet

Pair: TypeAlias = tuple[Any, Any]
"""Features (an array, a frame, or the arrays of several inputs) and targets."""
OwnData: TypeAlias = Pair | DataTable | DataSet | OnDemand


class MapStyleDataset(Protocol):
    """What a map-style torch `Dataset` offers: a length, and by index a pair (features, target) or a dict."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def from_arrays(
    x: Any,
    y: ArrayLike,
    *,
    classes: int | None = None,
    owners: ArrayLike | None = None,
    name: str = "arrays",
    task: ProblemType = "auto",
    scale: Scale = "default",
    tokens: bool = False,
) -> DataSet:
    """A data set of features and targets. Features are an array or a frame, or a tuple or dict of arrays, which are
    several inputs a sample. What has two dimensions is standardised unless `scale` says otherwise.

    Integers and text in y are class labels, numbered 0, 1, … in sorted order; with `classes` they are already such
    numbers. Floating-point y is a regression. `task` overrides that. Integers [n, t] are a class at each position.
    """
    reading = Reading(name=name, classes=classes, task=task, scale=scale, tokens=tokens)
    return data_set_of(as_rows(x, name), array_of(y, name, "y"), reading, owners)


def from_frame(
    frame: Any,
    *,
    targets: str | tuple[str, ...] | list[str],
    features: tuple[str, ...] | list[str] | None = None,
    categorical: tuple[str, ...] | list[str] = (),
    owner: str | None = None,
    name: str = "frame",
    task: ProblemType = "auto",
    scale: Scale = "default",
    tokens: bool = False,
    text: TextSettings | None = None,
) -> DataSet:
    """A data set of rows with named columns: a pandas or polars frame, a Hugging Face data set, a dict of columns or a
    list of dicts. `preprocessing.features` says what its columns became. With `text` they are texts.
    """
    table = as_table(frame, name)
    if table is None:
        raise DataError(f"{name}: {type(frame).__name__} has no named columns; use from_arrays(x, y)")
    reading = Reading(
        name=name,
        task=task,
        scale=scale,
        tokens=tokens,
        text=text,
        targets=(targets,) if isinstance(targets, str) else tuple(targets),
        features=None if features is None else tuple(features),
        categorical=tuple(categorical),
        owner=owner,
    )
    return data_set_of(table, None, reading)


def from_torch(
    dataset: MapStyleDataset,
    *,
    targets: str | tuple[str, ...] | list[str] = (),
    classes: int | None = None,
    name: str = "dataset",
    task: ProblemType = "auto",
    scale: Scale = "default",
    tokens: bool = False,
) -> DataSet:
    """A data set out of any map-style torch `Dataset` that gives for each index a pair (features, target), or a dict of
    which `targets` names what to predict.
    """
    held = read_torch(dataset, name)
    if not isinstance(held, tuple):
        return from_frame(held, targets=targets, name=name, task=task, scale=scale, tokens=tokens)
    return from_arrays(held[0], held[1], classes=classes, name=name, task=task, scale=scale, tokens=tokens)


def read_torch(dataset: MapStyleDataset, name: str) -> Pair | DataTable:
    """All samples of a map-style torch `Dataset`: features and targets, or the columns of dicts."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(f"{name} has no length or cannot be indexed; pass a map-style torch Dataset")
    if len(dataset) == 0:
        raise DataError(f"{name}: there are no rows")
    try:
        samples = [dataset[index] for index in range(len(dataset))]
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise DataError(f"{name}: its samples cannot be read: {error}".splitlines()[0]) from error
    if isinstance(samples[0], Mapping):
        table = as_table(from_records(samples, name), name)
        assert table is not None
        return table
    if any(not isinstance(sample, tuple | list) or len(sample) != 2 for sample in samples):
        raise DataError(f"{name}: samples must be pairs (features, target) or dicts, all of one shape")
    x, y = zip(*samples, strict=True)
    return _stacked(x, name), _stacked(y, name)


def _stacked(parts: tuple[Any, ...], name: str) -> Any:
    """One array for all samples; a tuple or dict of arrays where samples have several inputs."""
    first = parts[0]
    try:
        if isinstance(first, Mapping):
            return {key: _stacked(tuple(part[key] for part in parts), name) for key in first}
        if isinstance(first, tuple) and all(hasattr(each, "shape") for each in first):
            return tuple(_stacked(each, name) for each in zip(*parts, strict=True))
        return np.stack([array_of(part, name) for part in parts])
    except (TypeError, ValueError, KeyError) as error:
        raise DataError(f"{name}: samples must be pairs (features, target), all of one shape: {error}") from error


def apply_settings(given: OwnData, settings: DataSettings) -> DataSet | OnDemand:
    """Data that were passed in Python, understood and scaled as the settings say."""
    if isinstance(given, OnDemand):
        check_prepartitioned(settings, given.clients)
        settings.require_unset(("task", "tokens"), "OnDemandData, which sets it itself")
        return given
    if isinstance(given, DataSet):
        settings.require_unset(
            (*COLUMN_SETTINGS, "task", "tokens", "scale", "preprocessing"), "a DataSet, which sets it itself"
        )
        return given
    if isinstance(given, DataTable):
        return data_set_of(given, None, reading_of(settings))
    x, y = given
    rows = as_rows(x, settings.name)
    if isinstance(rows, DataTable):
        settings.require_unset(("targets",), "a pair (x, y)")
    else:
        settings.require_unset(COLUMN_SETTINGS, "data without named columns")
    return data_set_of(rows, array_of(y, settings.name, "y"), reading_of(settings))


def reading_of(settings: DataSettings) -> Reading:
    return Reading(
        name=settings.name,
        task=settings.task,
        scale=settings.scale,
        tokens=settings.tokens,
        text=settings.text,
        targets=settings.targets,
        features=settings.features,
        categorical=settings.categorical,
        owner=settings.owner,
        stated=settings.preprocessing,
    )


def check_own_file(path: Path, settings: DataSettings) -> None:
    """Refuse a file that is not there or of no known kind, and settings that it has no use for."""
    if path.is_dir() and settings.text is not None:
        settings.require_unset(COLUMN_SETTINGS, "a folder of texts, which has no columns")
        return
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


def read_own_file(path: Path, settings: DataSettings) -> DataSet:
    """The user's file, or folder of texts."""
    reading = reading_of(settings)
    if path.is_dir():
        return known_data_set(read_text_folder(path), settings.name, "default", unscaled, settings.text)
    if own_file_type(path) != ".npz":
        return data_set_of(open_table(path), None, reading)
    held = read_npz(path, ("x", "y"), ("owners",))
    return data_set_of(held["x"], held["y"], replace(reading, file=str(path)), held.get("owners"))
