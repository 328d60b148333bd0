"""Fetch files over the network: to a temporary file, checked, unpacked safely, and only then put in place."""

import hashlib
import shutil
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO, TypeAlias

from winnow.core import DataError
from winnow.data.parse_numeric_text import read_numbers

DownloadProgress: TypeAlias = Callable[[int, int | None], None]
"""Told how many bytes have come, of how many (None: unknown)."""

BLOCK = 1 << 18
TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file of a set. A checksum reads "sha256:…", "md5:…", or "numbers:…" for the numbers in a text file alone.

    No checksum is needed where the archive has one, or for an archive whose members have theirs.
    """

    name: str
    checksum: str | None = None


@dataclass(frozen=True, kw_only=True)
class Download:
    """One thing to fetch, from the first address that answers: a file, or an archive of `members`."""

    file: RemoteFile
    urls: tuple[str, ...]
    members: tuple[RemoteFile, ...] = ()

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        return self.members or (self.file,)


class DownloadError(DataError):
    """A file could not be fetched."""


def download(item: Download, folder: Path, on_progress: DownloadProgress | None = None) -> None:
    """Put the item's files into the folder: each of them whole and checked, or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as scratch:
        fetched = Path(scratch) / "download"
        _fetch_first(item.urls, fetched, on_progress)
        _verify(fetched, item.file)
        if item.members:
            _unpack(fetched, item, Path(scratch))
        else:
            fetched.rename(Path(scratch) / item.file.name)
        for file in item.files:
            (Path(scratch) / file.name).replace(folder / file.name)


def _fetch_first(urls: tuple[str, ...], target: Path, on_progress: DownloadProgress | None) -> None:
    faults = []
    for url in urls:
        try:
            _fetch(url, target, on_progress)
        except (OSError, HTTPException) as error:
            faults.append(f"{url}: {error}")
        else:
            return
    raise DownloadError("; ".join(faults))


def _fetch(url: str, target: Path, on_progress: DownloadProgress | None) -> None:
    # The addresses are those of the catalogue, never a user's.
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer, target.open("wb") as file:  # noqa: S310
        length = answer.headers.get("Content-Length")
        total = int(length) if length else None
        done = 0
        while block := answer.read(BLOCK):
            file.write(block)
            done += len(block)
            if on_progress:
                on_progress(done, total)
    if total is not None and done != total:
        raise OSError(f"the connection closed after {done} of {total} bytes")


def _verify(path: Path, file: RemoteFile) -> None:
    if file.checksum is None:
        return
    algorithm, _, expected = file.checksum.partition(":")
    actual = _digest(path, algorithm)
    if actual != expected:
        raise DownloadError(f"{file.name} has the {algorithm} {actual} instead of {expected}")


def _digest(path: Path, algorithm: str) -> str:
    if algorithm == "numbers":
        return hashlib.sha256(read_numbers(path).tobytes()).hexdigest()
    with path.open("rb") as content:
        return hashlib.file_digest(content, algorithm).hexdigest()


def _unpack(archive: Path, item: Download, folder: Path) -> None:
    """Write the wanted members under names of our own choosing: no path in the archive is ever followed."""
    wanted = {file.name: file for file in item.members}
    try:
        for path, content in _members(archive):
            if path.is_absolute() or ".." in path.parts:
                raise DownloadError(f"{item.file.name} holds the unsafe path {path}")
            if path.name in wanted:
                with (folder / path.name).open("wb") as target:
                    shutil.copyfileobj(content, target)
                _verify(folder / path.name, wanted.pop(path.name))
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error) as error:
        raise DownloadError(f"{item.file.name} is a truncated or damaged archive") from error
    if wanted:
        raise DownloadError(f"{item.file.name} does not contain {', '.join(wanted)}")


def _members(archive: Path) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """The regular files of a zip or tar archive, each open while it is looked at."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for entry in zipped.infolist():
                with zipped.open(entry) as content:
                    yield PurePosixPath(entry.filename), content
    else:
        with tarfile.open(archive) as tarred:
            for member in tarred:
                if member.isfile() and (unpacked := tarred.extractfile(member)):
                    yield PurePosixPath(member.name), unpacked
