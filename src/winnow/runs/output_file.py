"""What a command checks of a file that it is to write, before anything is asked, computed or written."""

import csv
import os
from collections.abc import Callable, Collection
from pathlib import Path

from winnow.core import ConfigError
from winnow.runs import file_names
from winnow.runs.atomic_write import one_line_errors

LONGEST_HEADER = 100_000
OF_A_RUN = (
    *(file_names.LABEL, file_names.CONFIG, file_names.CONDITIONS, file_names.EVENTS, file_names.METRICS),
    *(file_names.CHECKPOINT, file_names.RESULT, file_names.EVALUATION, file_names.ANSWER, file_names.OWNER_FILES),
    *(file_names.MODEL, file_names.SAVED_PARAMETERS, file_names.CARD, file_names.REFERENCE_SUMMARY, file_names.LOCK),
    *(file_names.COMPARISON, file_names.model_file("best"), file_names.model_file("last")),
)
"""What nothing but the run itself writes into its folder; reports can be made again."""


def check_output(path: Path | None, *endings: str, option: str = "") -> None:
    """Refuse a file that is none of this kind, cannot be written, or belongs to a run. `option` names it."""
    if path is None:
        return
    if path.suffix.lower() not in endings:
        raise ConfigError(
            f"{option} {path}: it is written as {' or '.join(endings)}; name the file {path.stem}{endings[0]}".lstrip()
        )
    check_writable(path, option=option)


def check_writable(path: Path, *, option: str = "") -> None:
    """Refuse a file that cannot be written: owners would have spent privacy on an answer that is lost."""
    named, folder = f"{option} {path}".lstrip(), path.parent
    if not folder.is_dir():
        raise ConfigError(f"{named}: there is no folder {folder}; create it, or name another file")
    if path.is_dir():
        raise ConfigError(f"{named}: this is a folder; name a file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{named}: you may not write in the folder {folder}; name another file")
    if path.name in OF_A_RUN and any((folder / each).is_file() for each in (file_names.LABEL, file_names.MODEL)):
        raise ConfigError(f"{named}: this file belongs to the run or model in {folder}; name another file")


def keep_other_table(path: Path, columns: Callable[[Path], Collection[str]], own: Collection[str], option: str) -> None:
    """Refuse to write over a table without the columns that are to be written: it is somebody's data."""
    if path.is_file() and path.stat().st_size and not {*own} <= {*columns(path)}:
        raise ConfigError(f"{option} {path}: this file holds another table, which would be lost; name another file")


def csv_columns(path: Path) -> Collection[str]:
    """The columns of a .csv file; what is no text has strange ones."""
    with one_line_errors(path), path.open(encoding="utf-8", errors="replace") as file:
        return next(csv.reader([file.readline(LONGEST_HEADER)]), [])
