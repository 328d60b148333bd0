"""A workflow's state as one file of arrays, written and read one array at a time."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from winnow.core import Arrays, RunError, Snapshot
from winnow.deploy.wire.safetensors_files import StoredArrays, write_arrays_without_digest
from winnow.runs.event_log import json_default

STATE = "state"
"""The name of what is no array: JSON, as bytes. Arrays of a snapshot are called a/…"""
PREFIX = "a/"


def save_snapshot(path: Path, snapshot: Snapshot) -> None:
    numpy = sorted(name for name, array in _peek(snapshot.arrays) if isinstance(array, np.ndarray | np.generic))
    text = json.dumps({"values": snapshot.values, "numpy": numpy}, default=json_default)
    write_arrays_without_digest(path, _Flat(snapshot.arrays, np.frombuffer(text.encode(), np.uint8)))


def load_snapshot(path: Path, *, in_memory: bool = True) -> Snapshot:
    """The snapshot of a file; unless it is to be `in_memory`, arrays are read when they are asked for."""
    stored = StoredArrays(path)
    try:
        state = json.loads(stored.numpy(STATE).tobytes())
        names = [name.removeprefix(PREFIX) for name in stored if name != STATE]
        arrays: Arrays = _Stored(stored, names, frozenset(state["numpy"]))
        if in_memory:
            arrays = dict(arrays)
        return Snapshot(arrays=arrays, values=state["values"])
    except (KeyError, ValueError, TypeError) as error:
        raise RunError(f"{path} is not a job's checkpoint: {error}") from error


def _peek(arrays: Arrays) -> Iterator[tuple[str, Any]]:
    """Whose arrays are NumPy's; a file's are all torch's, and need not be read for that."""
    if isinstance(arrays, dict):
        yield from arrays.items()


class _Flat(Mapping[str, Any]):
    def __init__(self, arrays: Arrays, state: Any) -> None:
        self._arrays, self._state = arrays, state

    def __iter__(self) -> Iterator[str]:
        yield STATE
        yield from (f"{PREFIX}{name}" for name in self._arrays)

    def __len__(self) -> int:
        return 1 + len(self._arrays)

    def dtype_and_shape(self, name: str) -> Any:
        described = None if name == STATE else getattr(self._arrays, "dtype_and_shape", None)
        return None if described is None else described(name.removeprefix(PREFIX))

    def __getitem__(self, name: str) -> Any:
        return self._state if name == STATE else self._arrays[name.removeprefix(PREFIX)]


class _Stored(Mapping[str, Any]):
    def __init__(self, stored: StoredArrays, names: list[str], numpy: frozenset[str]) -> None:
        self._stored, self._names, self._numpy = stored, names, numpy

    def dtype_and_shape(self, name: str) -> Any:
        return self._stored.dtype_and_shape(f"{PREFIX}{name}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Any:
        key = f"{PREFIX}{name}"
        return self._stored.numpy(key) if name in self._numpy else self._stored[key]
