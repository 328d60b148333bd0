"""Which files of a run folder are read, and what they must be: a folder may come from anybody."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from winnow.core import RunError
from winnow.runs import file_names

MEGABYTE = 2**20
SIZE_LIMITS = {
    file_names.LABEL: MEGABYTE,
    file_names.CONFIG: 4 * MEGABYTE,
    file_names.CONDITIONS: 64 * MEGABYTE,
    file_names.EVENTS: 2048 * MEGABYTE,
    file_names.RESULT: 4 * MEGABYTE,
    file_names.EVALUATION: 64 * MEGABYTE,
    file_names.ANSWER: 64 * MEGABYTE,
    file_names.CHECKPOINT: 2**50,
    file_names.METRICS: 2048 * MEGABYTE,
    file_names.REPORT: 256 * MEGABYTE,
}
"""All that is ever opened; a checkpoint's arrays are not read."""
DOWNLOADS = {
    file_names.CONFIG: "application/toml",
    file_names.METRICS: "text/csv",
    file_names.RESULT: "application/json",
    file_names.EVENTS: "application/x-ndjson",
    file_names.ANSWER: "application/json",
    file_names.EVALUATION: "application/json",
}
"""What may be downloaded, by its fixed name."""


def check_run_files(folder: Path) -> None:
    """Refuse links, which may lead to any file of the reader's, pipes, which would keep it waiting, and giants."""
    for name in SIZE_LIMITS:
        check_run_file(folder / name)


def check_run_file(path: Path) -> bool:
    """Whether the file is there, as a plain file of a size that is read; RunError where it is something else."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RunError(f"{path.name} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        what = "a link" if stat.S_ISLNK(found.st_mode) else "not a plain file"
        raise RunError(f"{path.name} is {what}; only plain files of a run folder are read")
    if found.st_size > SIZE_LIMITS[path.name]:
        raise RunError(f"{path.name} is larger than {SIZE_LIMITS[path.name] // MEGABYTE:,} MB; it is not read")
    return True


def open_download(folder: Path, name: str) -> BinaryIO | None:
    """A file that may be downloaded, opened; None where there is none. A link that was put there meanwhile is refused
    by the system itself.
    """
    if name not in DOWNLOADS or not check_run_file(folder / name):
        return None
    try:
        return os.fdopen(os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    except OSError as error:
        raise RunError(f"{name} cannot be read: {error.strerror}") from None
