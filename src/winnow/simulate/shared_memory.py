"""Memory that a process shares with those forked from it."""

import os
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import accumulate
from mmap import mmap

import numpy as np
import torch

from winnow.simulate.out_of_band_pickling import Bytes

ALIGNMENT = 64
"""Where arrays may begin, as torch itself would place them."""


class SharedMemoryBlock:
    """Arrays of bytes, one after another. It grows by need, has no name, and is gone with the last process that has it.

    One process writes and another reads, never at the same time; both find the same file behind their own map.
    """

    def __init__(self) -> None:
        self._file = _nameless_file()
        self._map: mmap | None = None

    def write(self, contents: Sequence[Bytes]) -> list[int]:
        """Replace what is there; the lengths are what the reader needs to know."""
        lengths = [len(each) for each in contents]
        starts, end = _layout(lengths)
        if end > os.fstat(self._file).st_size:
            os.ftruncate(self._file, end)
        shared = self._mapped(end)
        for start, each in zip(starts, contents, strict=True):
            shared[start : start + len(each)] = each
        return lengths

    def read(self, lengths: Sequence[int]) -> list[Bytes]:
        """A copy of what is there."""
        starts, end = _layout(lengths)
        copy: Bytes = torch.empty(end, dtype=torch.uint8).numpy()
        copy[:] = self._mapped(end)
        return [copy[start : start + length] for start, length in zip(starts, lengths, strict=True)]

    def close(self) -> None:
        self._unmap()
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _mapped(self, end: int) -> Bytes:
        if end == 0:
            return np.empty(0, np.uint8)
        if self._map is None or len(self._map) < end:
            self._unmap()
            self._map = mmap(self._file, 0)
        return np.frombuffer(self._map, np.uint8, end)

    def _unmap(self) -> None:
        if self._map is not None:
            with suppress(BufferError):  # an interrupted `write` or `read` still holds its view
                self._map.close()
        self._map = None


def _layout(lengths: Iterable[int]) -> tuple[list[int], int]:
    """Where each array begins, and where the last one ends."""
    starts = list(accumulate((-(-length // ALIGNMENT) * ALIGNMENT for length in lengths), initial=0))
    return starts[:-1], starts[-1]


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("winnow")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
