"""Predictions for the rows of a file, written beside the rows: CSV for CSV, Parquet for Parquet."""

import csv
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Any, TextIO

from numpy.typing import NDArray

from winnow.core import DataError, RunError
from winnow.data.file_formats import own_file_type, read_npz
from winnow.data.tables import CsvTable, open_table
from winnow.experiment.saved_model import SavedModel
from winnow.runs.atomic_write import one_line_errors, write_atomically
from winnow.runs.output_file import check_writable, csv_columns, keep_other_table

PREDICTION = "prediction"
Columns = dict[str, NDArray[Any]]


def predict_file(saved: SavedModel, rows: Path, out: Path | None, *, probabilities: bool) -> None:
    """Write the rows of a file with their predictions, to a file or to standard output."""
    kind = own_file_type(rows)
    if kind is None:
        raise DataError(f"{rows}: rows come in .csv, .csv.gz, .parquet or .npz files")
    if not rows.is_file():
        raise DataError(f"there is no file {rows}")
    parquet = kind == ".parquet"
    if parquet and (out is None or own_file_type(out) != ".parquet"):
        raise DataError(f"{rows} is a Parquet file; give one for the output: --out FILE.parquet")
    if out is not None and not parquet and own_file_type(out) != ".csv":
        raise DataError(f"--out: the output of {rows.name} is CSV; give a name that ends in .csv")
    if out is not None and out.exists() and out.samefile(rows):
        raise DataError(f"--out: {out} is the table of the rows itself; give another name")
    if out is not None:
        _check_output(out, parquet=parquet)
    given: Any = read_npz(rows, ["x"])["x"] if kind == ".npz" else open_table(rows)
    if kind != ".npz" and PREDICTION in given.columns:
        raise DataError(f"{rows} already has a column '{PREDICTION}'; rename or remove it first")
    added = _predictions(saved, given, probabilities=probabilities)
    if out is None:
        _print_csv(given, added)
        return
    with one_line_errors(out):
        if parquet:
            _write_parquet(rows, out, added)
        else:
            write_atomically(out, lambda temporary: _write_csv_file(temporary, given, added))


def _check_output(out: Path, *, parquet: bool) -> None:
    """Predictions of yesterday may be written over, another table of the user's may not."""
    check_writable(out, option="--out")
    keep_other_table(out, _parquet_columns if parquet else _csv_kinds, [PREDICTION], "--out")


def _csv_kinds(path: Path) -> Collection[str]:
    """The first word of each column: several targets have "prediction NAME" each."""
    return [name.partition(" ")[0] for name in csv_columns(path)]


def _parquet_columns(path: Path) -> Collection[str]:
    import pyarrow as arrow  # noqa: PLC0415 - an extra
    import pyarrow.parquet  # noqa: PLC0415

    with suppress(arrow.ArrowException, OSError):
        return [name.partition(" ")[0] for name in arrow.parquet.read_schema(path).names]
    return []


def _predictions(saved: SavedModel, given: Any, *, probabilities: bool) -> Columns:
    predicted = saved.predict(given)
    if predicted.ndim == 1:
        added = {PREDICTION: predicted}
    else:  # several targets, or a sequence
        targets = saved.preprocessing.targets
        flat = predicted.reshape(len(predicted), -1)
        names = [target.name or str(place) for place, target in enumerate(targets)] or map(str, range(flat.shape[1]))
        added = {f"{PREDICTION} {name}": values for name, values in zip(names, flat.T, strict=True)}
    if probabilities:
        shares = saved.predict_proba(given)
        if shares.ndim != 2:
            raise DataError("the model predicts a sequence for each row; omit --probabilities")
        added |= {f"probability {label}": values for label, values in zip(saved.classes or (), shares.T, strict=True)}
    return added


def _print_csv(given: Any, added: Columns) -> None:
    try:
        _write_csv(sys.stdout, given, added)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as head has: the command ends quietly
        raise
    except OSError as error:
        raise RunError(f"cannot write to standard output: {error.strerror or error}") from error


def _write_csv_file(path: Path, given: Any, added: Columns) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        _write_csv(file, given, added)


def _write_csv(file: TextIO, given: Any, added: Columns) -> None:
    writer = csv.writer(file, lineterminator="\n")
    count = len(next(iter(added.values())))
    lines: Iterator[list[str]] = given.raw_rows() if isinstance(given, CsvTable) else repeat([], count + 1)
    writer.writerow([*next(lines), *added])
    predicted: Iterable[tuple[Any, ...]] = zip(*(values.tolist() for values in added.values()), strict=True)
    for cells, values in zip(lines, predicted, strict=True):
        writer.writerow([*cells, *values])


def _write_parquet(rows: Path, out: Path, added: Columns) -> None:
    import pyarrow as arrow  # noqa: PLC0415 - an extra
    import pyarrow.parquet  # noqa: PLC0415

    table = arrow.parquet.read_table(rows)
    for name, values in added.items():
        table = table.append_column(name, arrow.array(values.tolist()))
    write_atomically(out, lambda temporary: arrow.parquet.write_table(table, temporary))
