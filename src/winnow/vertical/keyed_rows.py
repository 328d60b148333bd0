"""An owner's part of rows that several owners hold: keys, and its own columns or labels of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.core import DataError
from winnow.data.dataframe_adapters import array_of, as_table
from winnow.data.file_formats import own_file_type, read_npz
from winnow.data.fit_preprocessing import Reading, Rows, fit_features
from winnow.data.interpret_targets_and_owners import fit_targets
from winnow.data.preprocessing import Label, Preprocessing
from winnow.data.scaling import unscaled
from winnow.data.tables import DataTable, as_text, check_columns, check_complete, open_table

KEYS, X, Y = "keys", "x", "y"
"""The arrays of an .npz file."""


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyedRows:
    """One row a key. An owner of features has `x`, the owner of labels `y`, and one may have both."""

    keys: tuple[str, ...]
    x: Tensor | None = None
    y: Tensor | None = None
    classes: int | None = None
    labels: tuple[Label, ...] | None = None
    preprocessing: Preprocessing | None = None
    """How features were made of the owner's columns; fitted to its own rows, since nobody else has the columns."""

    def __len__(self) -> int:
        return len(self.keys)

    def ordered(self, keys: Sequence[str]) -> "KeyedRows":
        """The rows of these keys, in this order."""
        place = {key: row for row, key in enumerate(self.keys)}
        rows = torch.tensor([place[key] for key in keys], dtype=torch.int64)
        return KeyedRows(
            keys=tuple(keys),
            x=None if self.x is None else self.x[rows],
            y=None if self.y is None else self.y[rows],
            classes=self.classes,
            labels=self.labels,
            preprocessing=self.preprocessing,
        )

    def without(self, keys: Sequence[str]) -> "KeyedRows":
        """All rows but those of these keys."""
        left = {*keys}
        return self.ordered([key for key in self.keys if key not in left])


@dataclass(frozen=True, kw_only=True)
class OwnerColumns:
    """What is taken of an owner's table: the key, features (None: all other columns), a target where it has labels."""

    key: str
    target: str | None = None
    features: tuple[str, ...] | None = None
    has_features: bool = True

    @property
    def arrays(self) -> list[str]:
        """What an .npz file must have instead of columns."""
        return [KEYS, *([X] if self.has_features else []), *([Y] if self.target is not None else [])]


def keyed_rows(given: Any, columns: OwnerColumns, where: str) -> KeyedRows:
    """Rows out of a frame, a file (.csv, .parquet, or .npz with keys, x and y), or arrays: (keys, x), (keys, y), or
    (keys, x, y).
    """
    if isinstance(given, str | Path):
        path = Path(given).expanduser()
        if not path.is_file():
            raise DataError(f"{where}: there is no file {path}")
        if own_file_type(path) == ".npz":
            return _of_arrays(read_npz(path, columns.arrays), columns, str(path))
        return _of_table(open_table(path), columns)
    if isinstance(given, tuple):
        return _of_arrays(_named(given, columns, where), columns, where)
    table = as_table(given, where)
    if table is None:
        raise DataError(f"{where}: pass a frame, a file, or (keys, array), not {type(given).__name__}")
    return _of_table(table, columns)


def _named(given: tuple[Any, ...], columns: OwnerColumns, where: str) -> dict[str, NDArray[Any]]:
    names = columns.arrays
    if len(given) != len(names):
        raise DataError(f"{where}: expected ({', '.join(names)}), not {len(given)} arrays")
    return {name: array_of(values, where, name) for name, values in zip(names, given, strict=True)}


def _of_arrays(arrays: Mapping[str, NDArray[Any]], columns: OwnerColumns, where: str) -> KeyedRows:
    return _rows(
        arrays[KEYS],
        arrays[X] if columns.has_features else None,
        arrays[Y] if columns.target is not None else None,
        Reading(name=where),
        where,
    )


def _of_table(table: DataTable, columns: OwnerColumns) -> KeyedRows:
    check_columns(table, [columns.key], "key")
    if columns.target is not None:
        check_columns(table, [columns.target], "labels")
    apart = {columns.key, columns.target}
    features = columns.features or tuple(name for name in table.columns if name not in apart)
    if columns.has_features and not features:
        raise DataError(f"{table.where} has no column beside '{columns.key}' to learn from")
    target = (
        None if columns.target is None else check_complete(table.column(columns.target), columns.target, table.where)
    )
    return _rows(
        check_complete(table.column(columns.key), columns.key, table.where),
        table if columns.has_features else None,
        target,
        Reading(name=table.where, features=features),
        table.where,
    )


def _rows(
    keys: NDArray[Any], features: Rows | None, target: NDArray[Any] | None, reading: Reading, where: str
) -> KeyedRows:
    texts = as_text(keys)
    _check_keys(texts, where)
    preprocessing = None if features is None else fit_features(features, reading)
    x = None if features is None or preprocessing is None else _tensor(preprocessing.transform(features, where))
    targets = None if target is None else fit_targets(target, unscaled, where=where)
    y = None if targets is None else torch.as_tensor(targets.y)
    for name, held in ((X, x), (Y, y)):
        if held is not None and len(held) != len(texts):
            raise DataError(f"{where}: {len(texts)} keys, but {name} has {len(held)} rows")
    return KeyedRows(
        keys=tuple(texts.tolist()),
        x=x,
        y=y,
        classes=None if targets is None else targets.classes,
        labels=None if targets is None else targets.labels,
        preprocessing=preprocessing,
    )


def _tensor(features: Any) -> Tensor:
    if isinstance(features, tuple):
        raise DataError("several inputs cannot be split over owners; give one array an owner")
    return torch.as_tensor(features)


def _check_keys(keys: NDArray[np.str_], where: str) -> None:
    """Every row has a key of its own. The message does not quote it: keys are people."""
    first: dict[str, int] = {}
    for row, key in enumerate(keys.tolist(), start=1):
        if not key:
            raise DataError(f"{where}: the key of data row {row} is empty; remove such rows first")
        if key in first:
            raise DataError(f"{where}: data rows {first[key]} and {row} have the same key; keep one row a key")
        first[key] = row
