"""A file that is read again whenever it changes, so that nothing needs a restart."""

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Generic, TypeAlias, TypeVar

from winnow.deploy.trust.errors import TrustError
from winnow.deploy.trust.private_file_writing import read_small

T = TypeVar("T")
Stamp: TypeAlias = tuple[int, int, int] | None
"""Inode, time of the last change, size; None where there is no file."""
_NEVER: Stamp = (-1, -1, -1)

log = logging.getLogger(__name__)


class WatchedFile(Generic[T]):
    """The value of a file. `read` makes it of the contents, and sees the last good value.

    What stands in for a file that is missing is `absent`, and for one that cannot be read `broken`, both made of the
    last good value. One line in the log says when a file breaks, and another once it is mended.
    """

    def __init__(
        self,
        path: Path,
        read: Callable[[bytes, T], T],
        *,
        first: T,
        on_missing: Callable[[T], T],
        on_invalid: Callable[[T], T],
    ) -> None:
        self.path = path
        self._read, self._on_missing, self._on_invalid = read, on_missing, on_invalid
        self._good = self._value = first
        self._stamp = _NEVER
        self._is_broken = False
        self._lock = Lock()

    def current(self) -> T:
        with self._lock:
            stamp = self._look()
            if stamp != self._stamp:
                # The stamp was taken before reading: a change in between is seen as one more change next time.
                self._stamp = stamp
                self._value = self._on_missing(self._good) if stamp is None else self._load()
            return self._value

    def _look(self) -> Stamp:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError:
            return (0, 0, 0)
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _load(self) -> T:
        try:
            self._good = self._read(read_small(self.path), self._good)
        except (TrustError, OSError) as error:
            self._is_broken = True
            log.error("%s is invalid and was not applied: %s", self.path, error)
            return self._on_invalid(self._good)
        if self._is_broken:
            log.info("%s is valid again and was applied", self.path)
        self._is_broken = False
        return self._good
