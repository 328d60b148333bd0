"""Declared columns of CSV and Parquet files; the others are never held in memory."""

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as arrow

from winnow.core import DataError, suggest
from winnow.core.join_names import counted
from winnow.core.untrusted_text import one_line

COLUMNS_SHOWN = 12
BLOCK_BYTES = 1 << 24
"""No row of a CSV file may be longer."""


class UnknownColumnError(DataError):
    """A declared column is not there. The text names columns that are, declared or not."""

    def __init__(self, column: str, text: str) -> None:
        super().__init__(text)
        self.column = column


def read_file(path: Path, columns: Sequence[str]) -> arrow.Table:
    """These columns, in this order: cells of a CSV file as text, of a Parquet file as they are."""
    where = one_line(path)
    try:
        rows = _read_parquet(path, columns) if path.name.lower().endswith(".parquet") else _read_csv(path, columns)
    except OSError as error:
        raise DataError(f"{where} cannot be read: {error.strerror or 'it is damaged'}") from error
    if not rows.num_rows:
        raise DataError(f"{where} has no rows")
    return rows


def check_names(present: Sequence[str], columns: Sequence[str], where: str) -> None:
    """Refuse columns that are not there, or twice."""
    if repeated := [name for name, times in Counter(present).items() if times > 1]:
        raise DataError(f"{where} has more than one column '{one_line(repeated[0])}'; column names must be unique")
    shown = [one_line(name) for name in present]
    for name in columns:
        if name not in present:
            instead = suggest(name, shown, at_most=COLUMNS_SHOWN)
            raise UnknownColumnError(name, f"{where} has no column '{name}'; {instead}")


def _read_parquet(path: Path, columns: Sequence[str]) -> arrow.Table:
    from pyarrow import parquet  # noqa: PLC0415

    where = one_line(path)
    try:
        with parquet.ParquetFile(path) as file:
            check_names(file.schema_arrow.names, columns, where)
            return file.read(columns=list(columns)).select(list(columns))
    except arrow.ArrowException as error:
        raise DataError(f"{where} is not a readable Parquet file, or it is damaged") from error


def _read_csv(path: Path, columns: Sequence[str]) -> arrow.Table:
    from pyarrow import csv as arrow_csv  # noqa: PLC0415

    where = one_line(path)
    names = _header(path)
    check_names(names, columns, where)
    wrong: list[tuple[int, int]] = []

    def refuse(row: arrow_csv.InvalidRow) -> str:
        wrong.append((row.number, row.actual_columns))
        return "error"

    try:
        with _opened(path) as file:
            return arrow_csv.read_csv(
                file,
                # one thread: only then is the number of a faulty row known
                read_options=arrow_csv.ReadOptions(
                    use_threads=False, block_size=BLOCK_BYTES, column_names=names, skip_rows=1
                ),
                parse_options=arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=refuse),
                convert_options=arrow_csv.ConvertOptions(
                    include_columns=list(columns),
                    column_types=dict.fromkeys(columns, arrow.string()),
                    strings_can_be_null=False,
                ),
            )
    except arrow.ArrowInvalid as error:  # its text may quote a row
        if wrong:
            row, cells = wrong[0]
            raise DataError(
                f"{where}: data row {row - 1:,} has {counted(cells, 'cell')} but the header has {len(names)}"
            ) from None
        if "UTF8" in str(error):
            raise DataError(f"{where} is not UTF-8 text; save it as UTF-8 CSV") from None
        if "Empty CSV" in str(error):
            raise DataError(f"{where} has a header but no rows") from None
        raise DataError(f"{where} is not a readable CSV file; is a quote left open?") from None


def _opened(path: Path) -> arrow.NativeFile:
    return arrow.input_stream(path, compression="gzip" if path.name.lower().endswith(".gz") else None)


def _header(path: Path) -> list[str]:
    where = one_line(path)
    with _opened(path) as file:
        start = file.read(BLOCK_BYTES).removeprefix(b"\xef\xbb\xbf")
    line = start.partition(b"\n")[0].rstrip(b"\r")
    try:
        names = next(csv.reader([line.decode()], strict=True), [])
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not UTF-8 text; save it as UTF-8 CSV") from error
    except csv.Error as error:
        raise DataError(f"{where}: its first line is not a header; write column names in one line") from error
    if not any(name.strip() for name in names):
        raise DataError(f"{where} is empty; it must have a header line and rows")
    return [name.strip() for name in names]
