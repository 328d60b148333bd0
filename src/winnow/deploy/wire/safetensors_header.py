"""The header of a safetensors file, read as a stranger's: nothing in it is believed before it is checked."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from winnow.deploy.wire.dtypes import DTYPES, Dtype
from winnow.deploy.wire.errors import WireError, one_line

LENGTH_BYTES = 8
MAX_HEADER = 16 * 2**20
MAX_DIMENSIONS = 32
MAX_SIZE = 2**53
MAX_NAME = 1000
METADATA = "__metadata__"


@dataclass(frozen=True, kw_only=True)
class ArrayEntry:
    """Where an array lies in its file, counted from the file's beginning."""

    dtype: Dtype
    shape: tuple[int, ...]
    begin: int

    @property
    def size(self) -> int:
        return self.dtype.bytes * prod(self.shape)


def make_header(arrays: Iterable[tuple[str, Dtype, tuple[int, ...]]]) -> tuple[bytes, list[str]]:
    """A header for these arrays, and their order in the file: wide numbers first, so that all lie aligned, then by
    name. The same arrays give the same bytes.
    """
    ordered = sorted(arrays, key=lambda array: (-array[1].bytes, array[0]))
    described: dict[str, Any] = {}
    end = 0
    for name, dtype, shape in ordered:
        begin, end = end, end + dtype.bytes * prod(shape)
        described[_checked_name(name)] = {"dtype": dtype.name, "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise WireError(f"too many arrays for one file: {len(described)}")
    return len(text).to_bytes(LENGTH_BYTES, "little") + text, [name for name, _, _ in ordered]


def read_header(descriptor: int) -> dict[str, ArrayEntry]:
    """The arrays of an open file, which must be filled by them without gap or overlap."""
    total = os.fstat(descriptor).st_size
    length = int.from_bytes(os.pread(descriptor, LENGTH_BYTES, 0), "little")
    if total < LENGTH_BYTES or length > min(total - LENGTH_BYTES, MAX_HEADER):
        raise WireError("damaged safetensors file: the header is too long or truncated")
    text = os.pread(descriptor, length, LENGTH_BYTES)
    start = LENGTH_BYTES + length
    entries = [_entry(name, fields, start) for name, fields in _parse(text).items() if name != METADATA]
    _check_filled(entries, start, total)
    return {name: entry for name, entry, _ in entries}


def _parse(text: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(text.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise WireError(f"damaged safetensors file: the header is not valid JSON ({one_line(error)})") from None
    if not text.startswith(b"{") or not isinstance(parsed, dict):
        raise WireError("damaged safetensors file: the header is not a JSON object")
    return parsed


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _entry(name: str, fields: object, start: int) -> tuple[str, ArrayEntry, int]:
    """The array and where it says that it ends."""
    where = f"damaged safetensors file: {one_line(name)[:80]!r}"
    _checked_name(name)
    if not isinstance(fields, Mapping) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise WireError(f"{where} is not described by dtype, shape and data_offsets")
    dtype = DTYPES.get(fields["dtype"]) if isinstance(fields["dtype"], str) else None
    if dtype is None:
        raise WireError(f"{where} has an unknown dtype")
    shape, offsets = fields["shape"], fields["data_offsets"]
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS or prod(max(size, 1) for size in shape) > MAX_SIZE:
        raise WireError(f"{where} has an invalid shape")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[1] - offsets[0] != dtype.bytes * prod(shape):
        raise WireError(f"{where} has offsets that do not match its shape")
    return name, ArrayEntry(dtype=dtype, shape=tuple(shape), begin=start + offsets[0]), start + offsets[1]


def _are_sizes(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= MAX_SIZE for value in values)


def _checked_name(name: str) -> str:
    if not 0 < len(name) <= MAX_NAME or not name.isprintable() or name == METADATA:
        raise WireError(f"{one_line(name)[:80]!r} is not a valid name for an array")
    return name


def _check_filled(entries: list[tuple[str, ArrayEntry, int]], start: int, total: int) -> None:
    expected = start
    for name, entry, end in sorted(entries, key=lambda each: (each[1].begin, each[2])):
        if entry.begin != expected:
            raise WireError(f"damaged safetensors file: {name!r} overlaps another array or follows a gap")
        expected = end
    if expected != total:
        raise WireError(f"damaged safetensors file: it has {total} bytes; its header describes {expected}")
