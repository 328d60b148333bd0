"""A folder with one .npz file (x and y) a client, and beside them the files of the reference set and the test set."""

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.data.file_formats import array_names, check_array_names, npz_errors, read_npz
from winnow.data.types import Indices

REFERENCE, TEST, INDEX = "reference.npz", "test.npz", "index.npz"
SERVER_LABELLED, OPEN = "labelled.npz", "open.npz"
"""The samples that the server trains on itself, and those without labels (x alone) that everybody may see."""
NO_CLIENTS = frozenset({REFERENCE, TEST, INDEX, SERVER_LABELLED, OPEN})
"""Files of a folder that are no client's."""
PREPROCESSING = "preprocessing.json"
"""What made the arrays of a folder out of raw rows, if the folder says so."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientFiles:
    """Loads the file of a client. Their names are an array, so that a million of them are a few megabytes."""

    folder: Path
    names: NDArray[np.bytes_]

    @classmethod
    def of(cls, folder: Path) -> Self:
        """The clients' files in the order of the index, or else of their names: by number where these are numbers."""
        index = read_index(folder)
        names = index["files"].tolist() if index else sorted(_client_names(folder), key=_by_number)
        return cls(folder=folder, names=np.array([os.fsencode(name) for name in names]))

    def __len__(self) -> int:
        return len(self.names)

    def __call__(self, client: int) -> tuple[NDArray[Any], NDArray[Any]]:
        return read_pair(self._path(client))

    def owner_names(self) -> tuple[str, ...]:
        """What clients are called: as the index says, or else like their files; none where these are numbered."""
        index = read_index(self.folder)
        if "names" in index:
            return tuple(index["names"].tolist())
        stems = [os.fsdecode(name).removesuffix(".npz") for name in self.names]
        return () if all(map(_is_number, stems)) else tuple(stems)

    def sizes(self) -> Indices:
        """How many samples each client has: what the index says, or the heads of the files, whose arrays stay unread.

        A head takes a fraction of a millisecond, which an index saves.
        """
        index = read_index(self.folder)
        if index:
            return np.asarray(index["sizes"])
        return np.array([_rows(self._path(client)) for client in range(len(self))], np.int64)

    def _path(self, client: int) -> Path:
        return self.folder / os.fsdecode(self.names[client])


def count_clients(folder: Path) -> int:
    """How many clients a folder holds."""
    index = read_index(folder)
    return len(index["files"] if index else _client_names(folder))


def read_pair(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """The arrays x and y of a file."""
    held = read_npz(path, ("x", "y"))
    return held["x"], held["y"]


def read_index(folder: Path) -> dict[str, NDArray[Any]]:
    """The arrays `files`, `sizes` and maybe `classes` and `names` of the folder's index; nothing without one."""
    path = folder / INDEX
    if not path.is_file():
        return {}
    wanted, also = ("files", "sizes"), ("classes", "names")
    index = read_npz(path, wanted, also, known=(*wanted, *also))
    files, sizes = index["files"], index["sizes"]
    if files.dtype.kind != "U" or files.ndim != 1 or files.shape != sizes.shape or not len(files):
        raise DataError(f"{path}: files must list names and sizes must list numbers, one entry per client each")
    names = index.get("names", files)
    if names.dtype.kind != "U" or names.shape != files.shape:
        raise DataError(f"{path}: names must list one name per client, or be left out")
    classes = index.get("classes", np.array(2))
    if classes.ndim or classes.dtype.kind not in "iu" or classes < 2:
        raise DataError(f"{path}: classes must be a single whole number, 2 or greater; omit it for regression")
    return index


def _client_names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    found = [name for name in names if name.endswith(".npz") and name not in NO_CLIENTS]
    if not found:
        raise DataError(f"{folder} contains no client .npz files; add one per client, or check data.path")
    return found


def _by_number(name: str) -> tuple[bool, int, str]:
    stem = name.removesuffix(".npz")
    number = _is_number(stem)
    return not number, int(stem) if number else 0, stem


def _is_number(stem: str) -> bool:
    return stem.isascii() and stem.isdigit()


def _rows(path: Path) -> int:
    """How many rows the array x of a file has, by its head."""
    with npz_errors(path), zipfile.ZipFile(path) as archive:
        names = array_names(path, archive)
        if "x" not in names:
            raise DataError(f"{path} has no array 'x'; save x and y with np.savez")
        check_array_names(path, names)
        with archive.open("x.npy") as head:
            read = npy.read_array_header_1_0 if npy.read_magic(head) == (1, 0) else npy.read_array_header_2_0
            shape = read(head)[0]
    if min(shape, default=0) < 0:
        raise DataError(f"{path}: the array x has an impossible shape, {shape}")
    return int(shape[0]) if shape else 0
