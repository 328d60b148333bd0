"""Arrays in files: safetensors, written and read one array at a time, so that memory never holds a whole model twice.

An agent that only passes files on imports neither NumPy nor torch for it.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO
from weakref import finalize

from winnow.deploy.wire.atomic_files import replace_atomically, wire_errors
from winnow.deploy.wire.dtypes import Dtype, are_booleans, dtype_of, raw_bytes
from winnow.deploy.wire.errors import WireError
from winnow.deploy.wire.messages import Blob
from winnow.deploy.wire.safetensors_header import ArrayEntry, make_header, read_header

STEP = 2**20
SEPARATOR = "/"


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> Blob:
    """Write torch tensors or NumPy arrays; the file's name as a blob. Equal arrays give equal bytes.

    The file is whole or absent. It is not durable: a job's process hands it on to one that makes it so, or repeats what
    it was doing.
    """
    digest = sha256()
    size = _write(path, arrays, digest.update)
    return Blob(digest=digest.hexdigest(), size=size)


def write_arrays_without_digest(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write the same file for somebody who will work out the digest, or who needs none."""
    _write(path, arrays, lambda piece: None)


def _write(path: Path, arrays: Mapping[str, Any], digest: Callable[[bytes | memoryview], None]) -> int:
    header, order = make_header(_described(arrays))
    digest(header)
    size = len(header)
    with replace_atomically(path, durable=False) as file:
        file.write(header)
        for name in order:
            size += _append(raw_bytes(arrays[name]), file, digest)
    return size


def _append(data: memoryview, file: BinaryIO, digest: Callable[[bytes | memoryview], None]) -> int:
    """Write an array's bytes; how many they are. The array goes before the next one is asked for."""
    for start in range(0, len(data), STEP):
        piece = data[start : start + STEP]
        digest(piece)
        file.write(piece)
    return len(data)


def _described(arrays: Mapping[str, Any]) -> Iterator[tuple[str, Dtype, tuple[int, ...]]]:
    """What the arrays are like; those that are worked out or read when asked for may tell without that."""
    dtype_and_shape = getattr(arrays, "dtype_and_shape", None)
    for name in arrays:
        known = None if dtype_and_shape is None else dtype_and_shape(name)
        if known is None:
            array = arrays[name]
            known = dtype_of(array), tuple(array.shape)
        yield name, *known


def write_parts(path: Path, parts: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a payload's parts into one file: arrays are named part/name."""
    for part in parts:
        if not part or SEPARATOR in part:
            raise WireError(f"{part!r} is not a valid name for a part of a payload")
    write_arrays_without_digest(path, _Flat(parts))


class _Flat(Mapping[str, Any]):
    """Parts as one mapping, which asks for an array only when it is looked at."""

    def __init__(self, parts: Mapping[str, Mapping[str, Any]]) -> None:
        self._parts = parts
        self._keys = {f"{part}{SEPARATOR}{name}": (part, name) for part, arrays in parts.items() for name in arrays}

    def __getitem__(self, key: str) -> Any:
        part, name = self._keys[key]
        return self._parts[part][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class StoredArrays(Mapping[str, Any]):
    """The arrays of a file, each read when it is asked for: a torch tensor where this process uses torch, else NumPy's.

    The file stays open, so it may be removed while it is in use; it is closed with `close`, or with the last who holds
    this or a part of it.
    """

    def __init__(self, path: Path) -> None:
        with wire_errors(path):
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.close = finalize(self, os.close, self._file)
            try:
                self._entries = read_header(self._file)
            except BaseException:
                self.close()
                raise

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        """By the header: what a mapping does unless told otherwise would read the array."""
        return name in self._entries

    def dtype_and_shape(self, name: str) -> tuple[Dtype, tuple[int, ...]]:
        """What an array is like, by the header alone."""
        return self._entries[name].dtype, self._entries[name].shape

    def __getitem__(self, name: str) -> Any:
        entry = self._entries[name]
        if "torch" not in sys.modules and entry.dtype.numpy is not None:
            return self.numpy(name)
        import torch  # noqa: PLC0415 - only those who use tensors need it

        tensor = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype.torch))
        self._fill(raw_bytes(tensor), entry, name)
        return tensor

    def numpy(self, name: str) -> Any:
        """The array for NumPy, which knows all kinds but BF16."""
        import numpy as np  # noqa: PLC0415

        entry = self._entries[name]
        if entry.dtype.numpy is None:
            raise WireError(f"{name!r} is {entry.dtype.name}, which NumPy does not support")
        array = np.empty(entry.shape, dtype=entry.dtype.numpy)
        self._fill(raw_bytes(array), entry, name)
        return array

    def _fill(self, memory: memoryview, entry: ArrayEntry, name: str) -> None:
        done = 0
        while done < len(memory):
            got = os.preadv(self._file, [memory[done:]], entry.begin + done)
            if got == 0:
                raise WireError(f"damaged safetensors file: truncated within {name!r}")
            done += got
        if entry.dtype.name == "BOOL" and not are_booleans(memory):
            raise WireError(f"damaged safetensors file: {name!r} contains bytes that are not booleans")

    def parts(self) -> dict[str, "PartView"]:
        """A payload's parts, as `write_parts` wrote them."""
        names: dict[str, list[str]] = {}
        for key in self._entries:
            part, separator, name = key.partition(SEPARATOR)
            if not part or not separator or not name:
                raise WireError(f"{key!r} is not of the form part/name")
            names.setdefault(part, []).append(name)
        return {part: PartView(self, part, within) for part, within in names.items()}

    def __enter__(self) -> "StoredArrays":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PartView(Mapping[str, Any]):
    """One part of a payload: the arrays of a file under a common name."""

    def __init__(self, stored: StoredArrays, part: str, names: list[str]) -> None:
        self._stored = stored
        self._keys = {name: f"{part}{SEPARATOR}{name}" for name in names}

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def __getitem__(self, name: str) -> Any:
        return self._stored[self._keys[name]]

    def dtype_and_shape(self, name: str) -> tuple[Dtype, tuple[int, ...]]:
        return self._stored.dtype_and_shape(self._keys[name])
