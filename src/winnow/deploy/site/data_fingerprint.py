"""Whether the data of a job are still those with which it started.

A digest of their contents is stored here and never sent: whoever has it could test guesses at the data against it.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

from winnow.core.errors import DataError
from winnow.deploy.site.submission_records import SubmissionRecords
from winnow.deploy.wire.atomic_files import blob_of
from winnow.deploy.wire.errors import WireError

log = logging.getLogger(__name__)

PATH_KEYS = ("file", "folder", "files", "sets")
"""Keys of a data table that say where the data are; the others say what they mean."""

FileStamps: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""Of each file its name, inode, size and time of the last change: contents are read again if any of it differs."""


class DataChangedError(DataError):
    """Restoring the data helps; waiting does not."""


class DataFingerprint:
    """Of the data that `table` describes, for what its author submitted as `submission`."""

    def __init__(self, records: SubmissionRecords, submission: str, table: Mapping[str, Any]) -> None:
        self._records, self._submission, self._table = records, submission, table
        self._seen: tuple[FileStamps, str] | None = None
        self._first: str | None = None

    def check(self, *, started: bool = True) -> None:
        """Raise DataChangedError unless the data are as they were when the job started here, or was offered if it has
        not. What was only offered may be withdrawn, and offered again with other data.
        """
        try:
            stamp = tuple(_stamps(self._table))
            if self._seen is None or self._seen[0] != stamp:
                self._seen = (stamp, data_digest(self._table))
        except (OSError, WireError) as error:
            log.warning("the data cannot be read: %s", error)
            raise DataError("the data cannot be read; see the site's log") from error
        digest = self._seen[1]
        self._first = self._first or self._records.data_digest(self._submission) or digest
        if started and digest == self._first:
            self._first = self._records.fix_data_digest(self._submission, digest)
        if digest != self._first:
            raise DataChangedError(
                "the data changed since the job started; restore them at the site, or submit the job again"
            )


def data_digest(table: Mapping[str, Any]) -> str:
    """Of all that makes the data what they are: the contents of the files, and how they are read."""
    whole = sha256(json.dumps(_meaning(table), sort_keys=True).encode())
    for name, path in _files(table):
        whole.update(json.dumps([name, blob_of(path).digest]).encode())
    return whole.hexdigest()


def _meaning(table: Mapping[str, Any]) -> dict[str, Any]:
    """How the data are read, of one table or of several."""
    if "tables" in table:
        return {name: _meaning(each) for name, each in table["tables"].items()}
    return {key: value for key, value in table.items() if key not in PATH_KEYS}


def _stamps(table: Mapping[str, Any]) -> Iterator[tuple[str, int, int, int]]:
    for name, path in _files(table):
        status = path.stat()
        yield name, status.st_ino, status.st_size, status.st_ctime_ns


def _files(table: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """The files by the names that count: moving them all elsewhere changes nothing. A helper has none."""
    if "tables" in table:
        for name, each in table["tables"].items():
            yield from ((f"{name}/{own}", path) for own, path in _files(each))
    elif "file" in table:
        yield "", Path(table["file"])
    elif "files" in table or "sets" in table:
        named = table.get("sets") or dict(enumerate(table["files"]))
        yield from ((str(name), Path(place)) for name, place in named.items())
    elif "folder" in table:
        folder = Path(table["folder"])
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                yield str(path.relative_to(folder)), path
