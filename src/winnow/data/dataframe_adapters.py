"""Rows as Python programs hold them: frames of pandas or polars, tables of Arrow, Hugging Face's data sets, dicts of
columns, lists of dicts, arrays and tensors. None of these packages is imported: what they offer is asked for.
"""

from collections.abc import Mapping, Sequence
from datetime import date, time, timedelta
from math import isnan
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.data.tables import DataTable


class FrameTable:
    """Columns held in memory; each is understood when it is read."""

    def __init__(self, columns: Mapping[str, Any], where: str) -> None:
        self.where = where
        self._held = dict(columns)
        self.columns: Sequence[str] = list(self._held)
        lengths = {name: len(values) for name, values in self._held.items()}
        if not any(lengths.values()):
            raise DataError(f"{where}: there are no rows")
        if len({*lengths.values()}) > 1:
            (one, rows), *others = lengths.items()
            other, more = next((name, length) for name, length in others if length != rows)
            raise DataError(f"{where}: column '{one}' has {rows} rows but '{other}' has {more}; they must match")

    def column(self, name: str) -> NDArray[Any]:
        return _column(self._held[name], name, self.where)

    def read(self, names: Sequence[str]) -> list[NDArray[Any]]:
        return [self.column(name) for name in names]


def as_table(rows: Any, where: str) -> DataTable | None:
    """Rows with named columns as a table; None for anything else."""
    if isinstance(rows, DataTable):
        return rows
    columns: Mapping[Any, Any] | None = None
    if isinstance(rows, Mapping):
        columns = rows
    elif hasattr(rows, "iloc") and hasattr(rows, "columns"):  # pandas
        columns = {str(name): rows.iloc[:, place] for place, name in enumerate(rows.columns)}
        if len(columns) < len(rows.columns):
            raise DataError(f"{where} has two columns of one name; column names must be unique")
    elif hasattr(rows, "get_column") and hasattr(rows, "columns"):  # polars
        columns = {name: rows.get_column(name) for name in rows.columns}
    elif hasattr(rows, "column_names") and hasattr(rows, "__len__"):  # Arrow and Hugging Face
        columns = {name: rows[name] for name in rows.column_names}
    elif isinstance(rows, list | tuple) and rows and isinstance(rows[0], Mapping):
        columns = from_records(rows, where)
    if columns is None:
        return None
    if odd := [name for name in columns if not isinstance(name, str)]:
        raise DataError(f"{where}: column names must be text, and one is {odd[0]!r}; rename it")
    scalar = [name for name, values in columns.items() if not hasattr(values, "__len__") or isinstance(values, str)]
    if scalar:
        raise DataError(f"{where}: '{scalar[0]}' is a single value; every column needs one value per row")
    if split := [name for name, values in columns.items() if hasattr(values, "column_names")]:
        raise DataError(f"{where}: '{split[0]}' is a data set itself; pass one of them: data[{split[0]!r}]")
    return FrameTable(columns, where)


def from_records(records: Sequence[Any], where: str) -> dict[str, Any]:
    """The columns of rows that are dicts; what a row does not have is missing."""
    if odd := [row for row in records if not isinstance(row, Mapping)]:
        raise DataError(f"{where}: every row must be a dict, and one is {type(odd[0]).__name__}")
    names = dict.fromkeys(name for row in records for name in row)
    return {name: [row.get(name) for row in records] for name in names}


def array_of(values: Any, where: str, name: str = "x") -> NDArray[Any]:
    """Arrays, tensors, lists of numbers, and frames of which all columns are numbers; `name` is for messages."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        return np.asarray(values.float() if str(values.dtype) == "torch.bfloat16" else values)
    table = None if isinstance(values, np.ndarray) else as_table(values, where)
    if table is not None:
        return np.stack(table.read(table.columns), axis=1)
    if _is_series(values):
        return _column(values, name, where)
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise DataError(f"{where}: rows of {name} must be of one shape: {error}".splitlines()[0]) from error
    return _understood(array, name, where) if array.dtype == object and array.ndim == 1 else array


def check_finite(values: NDArray[Any], what: str, where: str) -> None:
    """Refuse what is not a number, and the first that is not finite by its place."""
    if values.dtype.kind not in "iufb":
        raise DataError(f"{where}: {what} must hold numbers, not {values.dtype}")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        place = ", ".join(map(str, np.argwhere(~np.isfinite(values))[0]))
        raise DataError(f"{where}: {what}[{place}] is not a finite number; fill in or remove such rows first")


def in_single_precision(scaled: NDArray[Any], values: NDArray[Any], what: str, where: str) -> NDArray[np.float32]:
    """Scaled values as models take them; the first that is too large for that is refused by its place in `values`."""
    with np.errstate(over="ignore"):
        single: NDArray[np.float32] = scaled.astype(np.float32, copy=False)
    if not np.isfinite([single.min(initial=0), single.max(initial=0)]).all():
        place = tuple(np.argwhere(~np.isfinite(single))[0])
        told = f"{what}[{', '.join(map(str, place))}] is {values[place]:g}"
        raise DataError(f"{where}: {told}, too large for a model to calculate with; correct it or remove such rows")
    return single


def _is_series(values: Any) -> bool:
    return hasattr(values, "isna") or hasattr(values, "null_count")


def _column(values: Any, name: str, where: str) -> NDArray[Any]:
    """A column as numbers (NaN where one is missing), text or other objects (None where one is missing), or arrays."""
    if hasattr(values, "detach"):
        return array_of(values, where)
    if hasattr(values, "isna"):  # pandas
        if isinstance(values.dtype, np.dtype) and values.dtype.kind in "iufbMm":
            return _checked_kind(values.to_numpy(), name, where)
        cells = np.array(values, dtype=object)
        cells[values.isna().to_numpy()] = None
    elif hasattr(values, "null_count"):  # polars, Arrow
        if hasattr(values, "to_physical") and values.dtype.is_numeric() and values.dtype.to_python() in (int, float):
            return _checked_kind(values.to_numpy(), name, where)
        cells = _objects(values.to_list() if hasattr(values, "to_list") else values.to_pylist())
    elif isinstance(values, np.ndarray) and values.dtype != object:
        return _checked_kind(values, name, where)
    else:
        cells = _objects(values)
    return _understood(cells, name, where)


def _objects(values: Any) -> NDArray[Any]:
    cells = np.empty(len(values), object)
    for place, value in enumerate(values):  # all at once, numpy would take lists of one length for a second dimension
        cells[place] = value
    return cells


def _checked_kind(values: NDArray[Any], name: str, where: str) -> NDArray[Any]:
    if values.dtype.kind in "Mm":
        raise _dates(name, where)
    if values.dtype.kind in "UT":
        return values.astype(object)
    if values.dtype.kind not in "iufb":
        raise DataError(f"{where}: column '{name}' holds {values.dtype}; convert it to numbers or text first")
    return values


def _understood(cells: NDArray[Any], name: str, where: str) -> NDArray[Any]:
    missing = np.array([_is_missing(each) for each in cells], bool)
    present = cells[~missing]
    kinds = {_kind(each) for each in present}
    if kinds == {"date"}:
        raise _dates(name, where)
    if kinds == {"array"}:
        if missing.any():
            row = int(np.flatnonzero(missing)[0])
            raise DataError(f"{where}: column '{name}', data row {row + 1} is missing; remove such rows first")
        try:
            return np.stack([array_of(each, where) for each in present])
        except ValueError:
            raise DataError(f"{where}: rows of column '{name}' differ in shape; pad them to one length") from None
    if kinds == {"text"}:
        cells = cells.copy()
        cells[missing] = None
        return cells
    if kinds <= {"flag", "number"}:
        if not missing.any() and len({type(each) for each in present} - {int, float, bool}) == 0 and len(kinds) == 1:
            return np.array(present.tolist())
        numbers = np.full(len(cells), np.nan)
        numbers[~missing] = [float(each) for each in present]
        whole = not missing.any() and all(isinstance(each, int | np.integer) for each in present)
        return numbers.astype(np.int64) if whole else numbers
    types = sorted({type(each).__name__ for each in present})
    raise DataError(f"{where}: column '{name}' holds {' and '.join(types[:3])}; make it all numbers or all text")


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool | np.bool_):
        return "flag"
    if isinstance(value, Real | np.number) or type(value).__name__ == "Decimal":
        return "number"
    if isinstance(value, date | time | timedelta | np.datetime64 | np.timedelta64):
        return "date"
    if isinstance(value, list | tuple | np.ndarray) or hasattr(value, "detach"):
        return "array"
    return "other"


def _is_missing(value: Any) -> bool:
    """None, NaN, and pandas' NA and NaT."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, Real) and isnan(value))


def _dates(name: str, where: str) -> DataError:
    return DataError(
        f"{where}: column '{name}' holds dates or times; convert it to a number first (days since …, hour of day),"
        " or leave it out of features"
    )
