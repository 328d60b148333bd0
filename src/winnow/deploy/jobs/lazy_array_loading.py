"""Files of arrays that come with tasks and replies: small ones are read, large ones stay on the disk."""

from pathlib import Path

from winnow.core import Arrays, Payload
from winnow.deploy.wire.safetensors_files import StoredArrays

MAX_IN_MEMORY_BYTES = 64 << 20
"""Larger files are read array by array, whenever one is asked for."""


def open_arrays(path: Path, in_memory: int | None = MAX_IN_MEMORY_BYTES) -> Arrays:
    """The arrays of a file, which may be removed afterwards. None for `in_memory` reads it all, however large."""
    stored = StoredArrays(path)
    if in_memory is not None and path.stat().st_size > in_memory:
        return stored
    with stored:
        return dict(stored)


def open_parts(path: Path, in_memory: int | None = MAX_IN_MEMORY_BYTES) -> Payload:
    """The parts of a payload, likewise."""
    stored = StoredArrays(path)
    parts = stored.parts()
    if in_memory is not None and path.stat().st_size > in_memory:
        return parts
    with stored:
        return {name: dict(part) for name, part in parts.items()}
