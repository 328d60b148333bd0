"""Times that were measured somewhere: a CSV file with the columns `client`, `seconds` and, if they change, `round`."""

import csv
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from winnow.core import DataError
from winnow.fleet.response_time_model import TableFleet, TimedFleetSettings
from winnow.fleet.settings import MNIST_SAMPLE_BITS

REQUIRED_COLUMNS, OPTIONAL_COLUMN = ("client", "seconds"), "round"


class TimeTrace(TimedFleetSettings):
    """Times from a file. Clients count from 0 and rounds from 1; after the last round the file begins again."""

    name: Literal["trace"] = "trace"
    path: Path = Field(strict=False)

    @field_validator("path")
    @classmethod
    def _anywhere(cls, path: Path) -> Path:
        """A run may be resumed from another folder."""
        return path.expanduser().absolute()

    def draw(
        self,
        clients: int,
        seed: int,
        *,
        sample_bits: float = MNIST_SAMPLE_BITS,
        corrupted: NDArray[np.bool_] | None = None,
    ) -> TableFleet:
        table = read_trace(self.path, clients)
        return TableFleet(seed=seed, dropout=self.dropout, communication=self.communication, table=table)


def read_trace(path: Path, clients: int) -> NDArray[np.float64]:
    """[rounds, clients] seconds, or a DataError that names the first thing that is wrong."""
    columns = _columns(path)
    numbers = _numbers(path, columns)
    client, seconds = (numbers[:, columns.index(name)] for name in REQUIRED_COLUMNS)
    number = numbers[:, columns.index(OPTIONAL_COLUMN)] if OPTIONAL_COLUMN in columns else np.ones(len(numbers))
    _refuse(path, ~np.isin(client, np.arange(clients)), f"client must be a whole number from 0 to {clients - 1}")
    _refuse(path, (number < 1) | (number % 1 != 0), "round must be a whole number, 1 or greater")
    _refuse(path, ~np.isfinite(seconds) | (seconds < 0), "seconds must be a finite number, 0 or greater")
    place = (number.astype(np.int64) - 1) * clients + client.astype(np.int64)
    first = np.unique(place, return_index=True)[1]
    _refuse(path, ~np.isin(np.arange(len(place)), first), "duplicate entry for this client and round")
    table = np.full((int(number.max()), clients), np.nan)
    table.reshape(-1)[place] = seconds
    if np.isnan(table).any():
        row, column = np.argwhere(np.isnan(table))[0]
        raise DataError(
            f"{path}: no time for client {column} in round {row + 1}; every client needs a row for every round"
        )
    return table


def _columns(path: Path) -> list[str]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            columns = [name.strip() for name in next(csv.reader(file), [])]
    except FileNotFoundError:
        raise DataError(f"fleet.path: {path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"fleet.path: {path}: cannot be read ({error.__class__.__name__})") from None
    if sorted(columns) not in (sorted(REQUIRED_COLUMNS), sorted((*REQUIRED_COLUMNS, OPTIONAL_COLUMN))):
        found = ", ".join(columns) or "nothing"
        raise DataError(f"{path}: the header must be client, seconds and optionally round; found: {found}")
    return columns


def _numbers(path: Path, columns: list[str]) -> NDArray[np.float64]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            next(file)
            lines = [line for line in file if not line.isspace()]
        if not lines:
            raise DataError(f"{path}: the file has a header but no rows")
        numbers: NDArray[np.float64] = np.loadtxt(lines, delimiter=",", comments=None, ndmin=2)
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: {error}".split("\n", 1)[0]) from None
    if numbers.shape[1] != len(columns):
        raise DataError(f"{path}: rows have {numbers.shape[1]} cells but the header has {len(columns)} columns")
    return numbers


def _refuse(path: Path, faulty: NDArray[np.bool_], what: str) -> None:
    if faulty.any():
        raise DataError(f"{path}: data row {int(np.argmax(faulty)) + 1}: {what}")
