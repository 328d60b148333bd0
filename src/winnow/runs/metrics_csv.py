"""metrics.csv: one row a round. A spreadsheet's view of the event log, from which it can always be made again."""

import csv
import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from winnow.runs.atomic_write import write_text_atomically
from winnow.runs.history import HistoryPoint

Row: TypeAlias = dict[str, float]


class MetricsFile:
    """Appends a row a point. A metric that appears late adds a column, which earlier rows leave empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] = []
        self._rows: list[Row] = []
        write_text_atomically(path, "")

    def add(self, point: HistoryPoint) -> None:
        row = row_of(point)
        self._rows.append(row)
        if row.keys() <= set(self._columns):
            with self._path.open("a", encoding="utf-8", newline="") as file:
                file.write(self._line(row))
        else:
            self._columns += [name for name in row if name not in self._columns]
            write_text_atomically(self._path, _csv(self._columns) + "".join(map(self._line, self._rows)))

    def _line(self, row: Row) -> str:
        return _csv(_cell(row.get(name)) for name in self._columns)


def row_of(point: HistoryPoint) -> Row:
    """A point as a flat row; metrics are named by their data: `test.accuracy`; bytes where they are counted."""
    measured = {f"{data}.{metric}": value for data, values in point.metrics.items() for metric, value in values.items()}
    known = {"round": point.round, "version": point.version, "seconds": point.seconds, "joules": point.joules}
    counted = {"sent_bytes": point.sent_bytes, "received_bytes": point.received_bytes}
    moved = {name: int(value) for name, value in counted.items() if value}
    return known | {"loss": point.loss} | measured | moved


def _cell(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else str(value)


def _csv(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
