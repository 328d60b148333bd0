"""Features of samples that a frozen encoder has seen, by the samples' fingerprints: no sample is encoded twice.

A folder has one file for every few thousand samples, each whole or absent, so a process that is killed loses little.
"""

import errno
import warnings
from collections.abc import Sequence
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError, RunError, WinnowWarning
from winnow.data.file_formats import read_npz
from winnow.runs.atomic_write import one_line_errors, write_atomically

DIGEST_BYTES = 16
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
FILE_ARRAYS = ("digests", "features")


def sample_digests(x: NDArray[Any]) -> list[bytes]:
    """A fingerprint of each sample."""
    return [blake2b(np.ascontiguousarray(row).tobytes(), digest_size=DIGEST_BYTES).digest() for row in x]


class FeatureCache:
    """Of one encoder and one kind of samples, which are its `identity`; without a folder, in memory alone."""

    def __init__(self, folder: Path | None, identity: str) -> None:
        self._folder = None if folder is None else folder / sha256(identity.encode()).hexdigest()[:32]
        self._known: dict[bytes, NDArray[np.float32]] = {}
        if self._folder is not None and self._folder.is_dir():
            with one_line_errors(self._folder):
                for path in sorted(self._folder.glob("*.npz")):
                    self._read(path)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._known

    @property
    def width(self) -> int | None:
        """Features of a sample; None where none is known."""
        return len(next(iter(self._known.values()))) if self._known else None

    def rows(self, digests: Sequence[bytes]) -> NDArray[np.float32]:
        """[n, features] of samples that are all known."""
        return np.stack([self._known[digest] for digest in digests])

    def add(self, digests: Sequence[bytes], features: NDArray[np.float32]) -> None:
        """Keep the features of these samples. Where the disk is full, what took hours stays in memory."""
        self._known |= dict(zip(digests, features, strict=True))
        if self._folder is None or not digests:
            return
        try:
            with one_line_errors(self._folder):
                _write(self._folder, digests, features)
        except RunError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in DISK_FULL:
                raise
            told = f"features could not be kept ({error}); the run goes on, and another one encodes these samples again"
            warnings.warn(told, WinnowWarning, stacklevel=2)
            self._folder = None  # one warning is enough

    def _read(self, path: Path) -> None:
        """A file that is damaged, or that somebody else wrote, is left aside: its samples are encoded again."""
        try:
            held = read_npz(path, FILE_ARRAYS, known=FILE_ARRAYS)
            digests, features = held["digests"], held["features"]
            fits = digests.dtype == np.uint8 and digests.shape == (len(features), DIGEST_BYTES)
            fits = (
                fits
                and features.dtype == np.float32
                and features.ndim == 2
                and features.shape[1] == (self.width or features.shape[1])
            )
            if not fits or not np.isfinite(features).all():
                raise DataError(f"{path} does not hold features")
        except (DataError, MemoryError, TypeError) as error:
            warnings.warn(f"{error}; its samples are encoded again", WinnowWarning, stacklevel=2)
            return
        self._known |= {row.tobytes(): kept for row, kept in zip(digests, features, strict=True)}


def _write(folder: Path, digests: Sequence[bytes], features: NDArray[np.float32]) -> None:
    name, held = sha256(b"".join(digests)).hexdigest()[:32], np.frombuffer(b"".join(digests), np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{name}.npz", lambda path: _save(path, held.reshape(-1, DIGEST_BYTES), features))


def _save(path: Path, digests: NDArray[np.uint8], features: NDArray[np.float32]) -> None:
    with path.open("wb") as file:  # a name would get another ending
        np.savez(file, digests=digests, features=features)
