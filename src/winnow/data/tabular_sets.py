"""Sets of people: ratings of films by user, and incomes and defaults of which everybody has one row."""

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.data.file_formats import plain_or_gzipped, read_bytes
from winnow.data.tables import CsvTable
from winnow.data.types import RawDataSet

MOVIELENS_LAYOUTS = (("u.data", "u.user", "u.item"), ("ml-100k.inter", "ml-100k.user", "ml-100k.item"))
ADULT_LAYOUTS = (("adult.data", "adult.test"),)
CREDIT_LAYOUTS = (("UCI_Credit_Card.csv",),)

GOOD_RATING = 4
GENRES = (
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama"),
    *("Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ADULT_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income"),
)
CREDIT_TARGET = "default.payment.next.month"
CREDIT_CATEGORIES = ("SEX", "EDUCATION", "MARRIAGE")


def read_movielens(folder: Path) -> RawDataSet:
    """MovieLens 100k: who liked a film (four stars or five), from what is public of the user, the film and the day."""
    official = plain_or_gzipped(folder, MOVIELENS_LAYOUTS[0][0]).is_file()
    names = MOVIELENS_LAYOUTS[0] if official else MOVIELENS_LAYOUTS[1]
    ratings, people, films = (_rows(plain_or_gzipped(folder, name), official=official) for name in names)
    users, items = {row[0]: row for row in people}, {row[0]: row for row in films}
    try:
        seen = [(users[row[0]], items[row[1]]) for row in ratings]
        moments = [datetime.fromtimestamp(float(row[3]), UTC) for row in ratings]
        liked = np.array([float(row[2]) >= GOOD_RATING for row in ratings], np.int64)
        columns: dict[str, NDArray[Any]] = {
            "age": np.array([float(user[1]) for user, _ in seen]),
            "gender": _texts([user[2] for user, _ in seen]),
            "occupation": _texts([user[3] for user, _ in seen]),
            "region": _texts([f"zip {user[4][0]}" if user[4][:1].isdigit() else "elsewhere" for user, _ in seen]),
            "year": np.array([_year(item, official=official) for _, item in seen]),
            "weekday": _texts([WEEKDAYS[moment.weekday()] for moment in moments]),
        }
        flags = np.array([_genres(item, official=official) for _, item in seen], np.float64)
    except (KeyError, IndexError, ValueError, OverflowError) as error:
        raise DataError(f"{folder}: the files of MovieLens do not fit together ({error!r}); get them again") from error
    columns |= {f"genre {name}": flags[:, place] for place, name in enumerate(GENRES)}
    owner_names = tuple(users)
    number = {name: place for place, name in enumerate(owner_names)}
    owners = np.array([number[row[0]] for row in ratings], np.int64)
    return RawDataSet(x=columns, y=liked, classes=2, owners=owners, owner_names=owner_names)


def _rows(path: Path, *, official: bool) -> list[list[str]]:
    """The rows of a file of MovieLens's own layout, or of one with a header that states types."""
    text = read_bytes(path).decode("latin-1" if official else "utf-8", errors="replace")
    between = "|" if official and not path.name.startswith("u.data") else "\t"
    rows = [line.split(between) for line in text.splitlines() if line]
    return rows if official else rows[1:]


def _year(item: Sequence[str], *, official: bool) -> float:
    text = item[2][-4:] if official else item[2]
    return float(text) if text.isdigit() else np.nan


def _genres(item: Sequence[str], *, official: bool) -> list[float]:
    if official:
        return [float(flag) for flag in item[5 : 5 + len(GENRES)]]
    named = set(item[3].split())
    return [float(genre in named) for genre in GENRES]


def read_adult(folder: Path) -> RawDataSet:
    """Adult: who earns more than 50,000 dollars a year. Everybody is an owner with one row; "?" is missing."""
    splits = [_adult_rows(plain_or_gzipped(folder, name)) for name in ADULT_LAYOUTS[0]]
    rows = [row for split in splits for row in split]
    held = dict(zip(ADULT_COLUMNS, zip(*rows, strict=True), strict=True))
    columns = {name: _numbers_or_texts(values) for name, values in held.items() if name not in ("income", "fnlwgt")}
    return RawDataSet(
        x=columns,
        y=np.array([income.startswith(">50K") for income in held["income"]], np.int64),
        classes=2,
        owners=np.arange(len(rows)),
        test_rows=np.arange(len(splits[0]), len(rows)),
    )


def _adult_rows(path: Path) -> list[list[str]]:
    """Rows of 15 values; a first line that says something else, and empty ones, are none."""
    lines = csv.reader(io.StringIO(read_bytes(path).decode("utf-8", errors="replace")), skipinitialspace=True)
    found = [row for row in lines if row and not row[0].startswith("|")]
    for number, row in enumerate(found, start=1):
        if len(row) != len(ADULT_COLUMNS):
            raise DataError(f"{path}: data row {number} has {len(row)} values instead of {len(ADULT_COLUMNS)}")
    return found


def read_credit(folder: Path) -> RawDataSet:
    """Credit: who fails to pay next month. Everybody is an owner with one row."""
    table = CsvTable(plain_or_gzipped(folder, CREDIT_LAYOUTS[0][0]))
    if CREDIT_TARGET not in table.columns:
        raise DataError(f"{table.where} has no column '{CREDIT_TARGET}'; get it again")
    names = [name for name in table.columns if name not in ("ID", CREDIT_TARGET)]
    columns: dict[str, NDArray[Any]] = dict(zip(names, table.read(names), strict=True))
    for name in CREDIT_CATEGORIES:
        columns[name] = _texts([f"{value:g}" for value in columns[name].tolist()])
    y = np.asarray(table.column(CREDIT_TARGET)).astype(np.int64)
    return RawDataSet(x=columns, y=y, classes=2, owners=np.arange(len(y)))


def _texts(values: Sequence[str | None]) -> NDArray[Any]:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _numbers_or_texts(values: Sequence[str]) -> NDArray[Any]:
    try:
        return np.array([float(value) for value in values])
    except ValueError:
        return _texts([None if value == "?" else value for value in values])
