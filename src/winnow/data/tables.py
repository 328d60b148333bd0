"""Tables with named columns, from CSV or Parquet: numbers for features, anything for labels and owners."""

import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TextIO, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError, suggest
from winnow.core.join_names import counted
from winnow.core.number_text import is_number
from winnow.data.file_formats import own_file_type

Numbers = NDArray[np.float64]
COLUMNS_SHOWN = 12
ROWS_LOOKED_AT = 1000
"""So many rows tell which columns are probably numbers throughout."""
MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None")
"""What a cell of a CSV file says where a number or a feature is missing. Of labels and owners only "" is."""


@runtime_checkable
class DataTable(Protocol):
    """Named columns of equal length."""

    @property
    def where(self) -> str:
        """What messages call it."""

    @property
    def columns(self) -> Sequence[str]: ...

    def column(self, name: str) -> NDArray[Any]:
        """Whole numbers where all cells are, numbers (NaN: missing), text (None: missing), or an array a row."""

    def read(self, names: Sequence[str]) -> list[NDArray[Any]]:
        """Several columns of features at once. Whole numbers may come as floating-point ones."""


def open_table(path: Path) -> DataTable:
    if own_file_type(path) != ".parquet":
        return CsvTable(path)
    from winnow.data.parquet import ParquetTable  # noqa: PLC0415 - pyarrow is an extra

    return ParquetTable(path)


def check_columns(table: DataTable, names: Sequence[str], purpose: str) -> None:
    """Refuse a name that is not a column, and say which ones there are."""
    for name in names:
        if name not in table.columns:
            instead = suggest(name, table.columns, at_most=COLUMNS_SHOWN)
            raise DataError(f"{table.where} has no column '{name}' (named as {purpose}); {instead}")


def check_complete(values: NDArray[Any], column: str, where: str) -> NDArray[Any]:
    """Refuse missing values where none may be: in labels, targets and owners."""
    missing = np.isnan(values) if values.dtype.kind == "f" else values == None if values.dtype == object else None  # noqa: E711
    if missing is not None and missing.any():
        row = int(np.argwhere(missing)[0][0]) + 1
        raise DataError(f"{where}: column '{column}', data row {row} is empty; remove such rows first")
    return values


def as_text(values: NDArray[Any]) -> NDArray[np.str_]:
    """Categories and labels as a configuration writes them: 1.0 is 1, and a missing value is empty."""
    if values.dtype.kind == "f":
        texts = [str(int(each)) if each.is_integer() else str(each) for each in values]
        return np.where(np.isnan(values), "", np.array(texts, np.str_))
    return np.array(["" if each is None else str(each) for each in values.tolist()], np.str_)


class CsvTable:
    """A comma-separated file with a header line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.where = str(path)
        self.columns: Sequence[str] = next(self._rows(), [])
        if not self.columns:
            raise DataError(f"{path} is empty; it must have a header line and rows")
        between = next((mark for mark in (";", "\t") if mark in self.columns[0]), None)
        if between is not None and len(self.columns) == 1:
            mark = "tabs" if between == "\t" else "';'"
            raise DataError(f"{path}: the columns seem to be separated by {mark}; save it with commas")
        if any("\n" in name or "\r" in name for name in next(self.raw_rows())):
            raise DataError(f"{path}: a column's name contains a line break; write the header in one line")
        if repeated := [name for name, times in Counter(self.columns).items() if times > 1]:
            raise DataError(f"{path} has more than one column '{repeated[0]}'; column names must be unique")
        if next(self._cells(), None) is None:
            raise DataError(f"{path} has a header but no rows")
        self._check_widths()

    def numbers(self, columns: Sequence[str]) -> Numbers:
        """[rows, columns] finite numbers, or a DataError that names the first cell that is not one."""
        try:
            numbers = self._read(columns, np.float64)
        except ValueError as error:
            raise self._first_fault(columns) or self._unreadable(error) from error
        if not np.isfinite(numbers).all():
            row, column = np.argwhere(~np.isfinite(numbers))[0]
            raise DataError(
                f"{self.path}: column '{columns[column]}', data row {row + 1} is {numbers[row, column]};"
                " fill in or remove such rows first"
            )
        return numbers

    def column(self, name: str) -> NDArray[Any]:
        try:
            text = np.char.strip(self._read([name], np.str_)[:, 0])
        except ValueError as error:
            raise self._unreadable(error) from error
        missing = np.isin(text, MISSING)
        if not missing.any():
            return _as_numbers(text)
        if not missing.all():
            try:
                return np.where(missing, "nan", text).astype(np.float64)
            except ValueError:
                pass  # text: a label may be "None", and an owner "NA"
        cells = text.astype(object)
        cells[text == ""] = None
        return cells

    def read(self, names: Sequence[str]) -> list[NDArray[Any]]:
        """All columns of numbers in one pass; each that looks otherwise in a pass of its own."""
        few = list(islice(self._cells(), ROWS_LOOKED_AT))
        plain = [name for name in names if all(is_number(row[self.columns.index(name)]) for row in few)]
        try:
            held = dict(zip(plain, self._read(plain, np.float64).T, strict=True)) if plain else {}
        except ValueError:
            held = {}
        return [held[name] if name in held else self._feature(name) for name in names]

    def _feature(self, name: str) -> NDArray[Any]:
        values = self.column(name)
        if values.dtype == object:
            values[np.isin(values.astype(np.str_), MISSING)] = None
        return values

    def raw_rows(self) -> Iterator[list[str]]:
        """The header, then the cells of each row, as they are: slow, and right. A blank line is no row."""
        text: list[str] = []

        def lines() -> Iterator[str]:
            for line in self._lines():
                text.append(line)
                yield line

        try:
            for number, row in enumerate(csv.reader(lines())):
                if number == 0 or not "".join(text).isspace():
                    yield row
                text.clear()
        except csv.Error as error:
            raise self._unreadable(error) from error

    def _read(self, columns: Sequence[str], kind: type[np.generic]) -> NDArray[Any]:
        return np.loadtxt(
            (line for line in islice(self._lines(), 1, None) if not line.isspace()),
            dtype=kind,
            delimiter=",",
            quotechar='"',
            comments=None,
            usecols=[self.columns.index(name) for name in columns],
            ndmin=2,
        )

    def _opened(self) -> TextIO:
        if self.path.suffix.lower() == ".gz":
            return gzip.open(self.path, "rt", newline="", encoding="utf-8-sig")
        return self.path.open(newline="", encoding="utf-8-sig")

    def _lines(self) -> Iterator[str]:
        try:
            with self._opened() as file:
                yield from file
        except UnicodeDecodeError as error:
            raise DataError(f"{self.path} is not UTF-8 text; save it as UTF-8 CSV") from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._unreadable(error) from error

    def _rows(self) -> Iterator[list[str]]:
        return ([cell.strip() for cell in row] for row in self.raw_rows())

    def _cells(self) -> Iterator[list[str]]:
        return islice(self._rows(), 1, None)

    def _check_widths(self) -> None:
        """Every row has as many cells as the header. Counting commas settles it, unless something is quoted."""
        commas = len(self.columns) - 1
        plain = all(line.count(",") == commas and '"' not in line for line in self._lines() if not line.isspace())
        fault = None if plain else self._first_fault([])
        if fault is not None:
            raise fault

    def _unreadable(self, error: Exception) -> DataError:
        return DataError(f"{self.path} cannot be read: {error}")

    def _first_fault(self, columns: Sequence[str]) -> DataError | None:
        """The first row of the wrong length, or the first of these cells that is not a number."""
        places = [(name, self.columns.index(name)) for name in columns]
        for number, row in enumerate(self._cells(), start=1):
            if len(row) != len(self.columns):
                cells = f"{counted(len(row), 'cell')} but the header has {len(self.columns)}"
                return DataError(f"{self.path}: data row {number} has {cells}")
            for name, place in places:
                if not is_number(row[place]):
                    cell = f"'{row[place]}'" if row[place] else "an empty cell"
                    return DataError(
                        f"{self.path}: column '{name}', data row {number} holds {cell}, not a number;"
                        " correct it or remove the column from features"
                    )
        return None


def _as_numbers(text: NDArray[np.str_]) -> NDArray[Any]:
    for kind in (np.int64, np.float64):
        try:
            return text.astype(kind)
        except ValueError:
            continue
    return text.astype(object)
