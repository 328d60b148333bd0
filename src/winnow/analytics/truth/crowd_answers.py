"""Answers of a crowd by name, read from a CSV file or from columns, and checked."""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from winnow.analytics.truth.answer_arrays import AnswerArrays, Numbers
from winnow.core import ConfigError, DataError, suggest
from winnow.core.untrusted_text import one_line

Row: TypeAlias = tuple[str, str, str, str]
"""Where it stands, item, worker, label."""
MAX_CLASSES = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class CrowdAnswers:
    """Answers with the names of items, workers and labels. Numbers are between `low` and `high`, and have no labels."""

    arrays: AnswerArrays
    items: tuple[str, ...]
    workers: tuple[str, ...]
    labels: tuple[str, ...] = ()
    low: float = -1.0
    high: float = 1.0

    def votes(self) -> Numbers:
        """How many workers gave each item each label; for numbers, the mean answer in their own units."""
        arrays = self.arrays
        if self.labels:
            counts = np.zeros((arrays.item_count, arrays.classes))
            np.add.at(counts, (arrays.items, arrays.labels), 1)
            return counts
        sums = np.bincount(arrays.items, arrays.values, arrays.item_count)
        return self.in_units(sums / np.maximum(self.answered(), 1))[:, None]

    def answered(self) -> Numbers:
        """How many answers each item has."""
        return np.bincount(self.arrays.items, minlength=self.arrays.item_count).astype(np.float64)

    def in_units(self, scaled: Numbers) -> Numbers:
        return self.low + (scaled + 1) / 2 * (self.high - self.low)


def read_answers(
    source: str | Path | Mapping[str, Sequence[Any]],
    *,
    item: str,
    worker: str,
    label: str,
    numeric: bool = False,
    labels: Sequence[str] = (),
) -> CrowdAnswers:
    """Answers from three columns of a CSV file, or of a mapping or data frame. An empty label is no answer.

    `labels` lists those that are allowed; otherwise they are those that occur.
    """
    if len({item, worker, label}) < 3:
        raise ConfigError("item, worker and label are different columns")
    if isinstance(labels, str):
        raise ConfigError(f"labels: {labels!r} is one text; give a list of labels")
    if isinstance(source, str | Path):
        rows = list(_rows_of_file(Path(source), (item, worker, label)))
    else:
        rows = list(_rows_of_columns(source, (item, worker, label)))
    if not rows:
        raise DataError("there are no answers")
    items, workers = _numbered(row[1] for row in rows), _numbered(row[2] for row in rows)
    _check_rows(rows)
    given = [row for row in rows if row[3]]
    if not given:
        raise DataError(f"all cells of column '{label}' are empty: nobody answered")
    if len(workers) < 2:
        raise DataError(f"all answers are from worker '{next(iter(workers))}'; truth discovery compares two or more")
    names = () if numeric else _labels(given, [_text(each) for each in labels])
    low, high, values = _numbers(given) if numeric else (-1.0, 1.0, _classes(given, names))
    arrays = AnswerArrays(
        items=np.array([items[row[1]] for row in given], np.int64),
        workers=np.array([workers[row[2]] for row in given], np.int64),
        values=values,
        item_count=len(items),
        worker_count=len(workers),
        classes=len(names),
    )
    return CrowdAnswers(arrays=arrays, items=(*items,), workers=(*workers,), labels=names, low=low, high=high)


def _rows_of_file(path: Path, columns: tuple[str, str, str]) -> Iterator[Row]:
    where = one_line(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            if not header:
                raise DataError(f"{where} is empty; its first line names the columns")
            places = [_place(name, header, where) for name in columns]
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise DataError(f"{where}, line {reader.line_num}: {len(cells)} cells instead of {len(header)}")
                found = (cells[place].strip() for place in places)
                yield (f"{where}, line {reader.line_num}", *found)  # type: ignore[misc]
    except OSError as error:
        raise DataError(f"{where} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{where} is not a readable CSV file: {one_line(error)}") from error


def _place(name: str, header: Sequence[str], where: str) -> int:
    if header.count(name) != 1:
        if name in header:
            raise DataError(f"{where} has more than one column '{name}'")
        raise DataError(f"{where} has no column '{one_line(name)}'; {suggest(name, [*map(one_line, header)])}")
    return header.index(name)


def _rows_of_columns(source: Mapping[str, Sequence[Any]], columns: tuple[str, str, str]) -> Iterator[Row]:
    for name in columns:
        if name not in source:
            raise DataError(f"the answers have no column '{name}'; {suggest(name, [*map(str, source)])}")
    cells = [list(source[name]) for name in columns]
    if len({*map(len, cells)}) != 1:
        raise DataError("the columns of the answers differ in length")
    for number, row in enumerate(zip(*cells, strict=True)):
        item, worker, label = map(_text, row)
        yield f"row {number}", item, worker, label


def _text(cell: Any) -> str:
    """A cell as text; None, NaN and pandas' NA are empty, whole numbers have no point."""
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return ""
    if isinstance(cell, float | np.floating):
        return "" if math.isnan(cell) else str(int(cell)) if float(cell).is_integer() else str(float(cell))
    return str(cell).strip()


def _check_rows(rows: Sequence[Row]) -> None:
    first: dict[tuple[str, str], str] = {}
    for where, item, worker, _ in rows:
        if not item or not worker:
            raise DataError(f"{where}: the {'worker' if item else 'item'} is empty")
        if (item, worker) in first:
            raise DataError(
                f"{where}: worker '{one_line(worker)}' answers item '{one_line(item)}' a second time "
                f"(before: {first[item, worker]}); keep one answer"
            )
        first[item, worker] = where


def _numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _labels(given: Sequence[Row], allowed: Sequence[str]) -> tuple[str, ...]:
    if len({*allowed}) != len(allowed) or len(allowed) == 1:
        raise DataError("labels: name two or more, each once")
    if allowed:
        for where, _, _, label in given:
            if label not in allowed:
                raise DataError(f"{where}: unknown label '{one_line(label)}'; {suggest(label, list(allowed))}")
        return (*allowed,)
    found = {row[3] for row in given}
    if len(found) == 1:
        raise DataError(f"every answer is '{one_line(next(iter(found)))}'; name the other labels, too: --labels A,B")
    if len(found) > MAX_CLASSES:
        raise DataError(f"{len(found):,} different labels are too many; for numbers take the method crh")
    return (*sorted(found, key=lambda text: (_number(text) is None, _number(text) or 0.0, text)),)


def _classes(given: Sequence[Row], names: tuple[str, ...]) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    place = {name: number for number, name in enumerate(names)}
    return np.array([place[row[3]] for row in given], np.int64)


def _numbers(given: Sequence[Row]) -> tuple[float, float, Numbers]:
    """The least and the greatest number, and all of them scaled to [−1, 1]."""
    for where, _, _, label in given:
        if _number(label) is None:
            raise DataError(f"{where}: '{one_line(label)}' is not a number; the method crh takes numbers alone")
    values = np.array([float(row[3]) for row in given])
    low, high = float(values.min()), float(values.max())
    if low == high:
        raise DataError(f"every answer is {low:g}: there is nothing to weigh")
    return low, high, (values - low) / (high - low) * 2 - 1


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) < 1e100 else None
