"""Where the files of known sets lie on this machine, and how they get there."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from winnow.core import DataError
from winnow.data.download import Download, DownloadError, DownloadProgress, download
from winnow.data.file_formats import plain_or_gzipped
from winnow.data.known_sets import KNOWN_SETS, KnownSet, known_set


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """An entry of the catalogue. `where` is the folder that holds the set, None where it would have to be fetched."""

    name: str
    description: str
    files: tuple[str, ...]
    download_bytes: int
    home: str
    bundled: bool
    where: Path | None

    @property
    def present(self) -> bool:
        return self.bundled or self.where is not None


def data_directories(directory: Path | None = None) -> tuple[Path, ...]:
    """Where files are looked for, in this order: the one given, $WINNOW_DATA, the user's cache folder."""
    named = os.environ.get("WINNOW_DATA")
    candidates = (directory, Path(named) if named else None, _cache())
    return tuple(dict.fromkeys(Path(each).expanduser() for each in candidates if each is not None))


def catalogue(directory: Path | None = None) -> list[CatalogueEntry]:
    """All known sets, and which of them are on this machine."""
    directories = data_directories(directory)
    return [
        CatalogueEntry(
            name=each.name,
            description=each.description,
            files=each.layouts[0] if each.layouts else (),
            download_bytes=each.download_bytes,
            home=each.home,
            bundled=not each.layouts,
            where=find_known_set(each, directories),
        )
        for each in KNOWN_SETS.values()
    ]


def fetch(name: str, directory: Path | None = None, on_progress: DownloadProgress | None = None) -> Path:
    """Download what is missing of a known set into `directory` (the cache folder unless given); gives its folder."""
    return fetch_set(known_set(name), directory, on_progress)


def fetch_set(wanted: KnownSet, directory: Path | None = None, on_progress: DownloadProgress | None = None) -> Path:
    if not wanted.layouts:
        raise DataError(f"{wanted.name} needs no download: {wanted.description}")
    target = (directory or _cache()).expanduser()
    folder = find_known_set(wanted, [target]) or target / wanted.folders[0]
    if not wanted.downloads and not _complete(wanted, folder):
        raise DataError(_advice(wanted, folder, data_directories(directory), "its terms want you to fetch it yourself"))
    try:
        for item in _missing(wanted, folder):
            download(item, folder, on_progress)
    except (DownloadError, OSError) as error:
        raise DataError(_advice(wanted, folder, data_directories(directory), error)) from error
    return folder


def find_known_set(wanted: KnownSet, directories: Sequence[Path]) -> Path | None:
    """The first folder that holds all files of one of the set's layouts."""
    folders = (directory / folder for directory in directories for folder in ("", *wanted.folders))
    return next((folder for folder in folders if _complete(wanted, folder)), None)


def _complete(wanted: KnownSet, folder: Path) -> bool:
    return any(all(plain_or_gzipped(folder, name).is_file() for name in layout) for layout in wanted.layouts)


def _missing(wanted: KnownSet, folder: Path) -> list[Download]:
    """What is still to be fetched: of a set that is complete in some layout, only what belongs to no layout."""
    complete = _complete(wanted, folder)
    needed = {name for layout in wanted.layouts for name in layout}

    def lacks(item: Download) -> bool:
        names = {file.name.removesuffix(".gz") for file in item.files}
        absent = any(not plain_or_gzipped(folder, name).is_file() for name in names)
        return absent and not (complete and names <= needed)

    return [item for item in wanted.downloads if lacks(item)]


def _advice(wanted: KnownSet, folder: Path, searched: Sequence[Path], error: Exception | str) -> str:
    return (
        f"{wanted.name} could not be downloaded ({error}): get {', '.join(wanted.layouts[0])} from {wanted.home}"
        f" and put them into {folder} (searched: {', '.join(map(str, searched))})"
    )


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "winnow"
