"""The event log of a run that may still be written: what has come since the last look."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from winnow.core import AnyEvent, RunError
from winnow.runs.event_log import decode_event

CHUNK = 16 * 2**20
NOT_DECODED = (b'{"kind":"scored"',)
"""Lines that are long, and of no use to those who follow a run."""


class LogCutBack(Exception):  # noqa: N818 - a run was resumed: nothing is wrong
    """The log is shorter than it was, or another one: what was read of it is void."""


class LogTail:
    """Reads on where it stopped. A last line that is still being written is left for next time."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._inode = path, 0, 0

    def new_events(self) -> Iterator[AnyEvent]:
        """One after another: those of a log of gigabytes have no room in memory."""
        while (lines := self._new_lines()) is not None:
            for line in lines:
                if not line.startswith(NOT_DECODED):
                    yield _decode(self._path, line)

    def _new_lines(self) -> list[bytes] | None:
        """Whole lines, at most a chunk of them; None where there is nothing new."""
        try:
            handle = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunError(f"{self._path.name} cannot be read: {error.strerror}") from None
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_size < self._offset or (self._inode and found.st_ino != self._inode):
                raise LogCutBack
            file.seek(self._offset)
            text = file.read(CHUNK)
        self._inode = found.st_ino
        end = text.rfind(b"\n") + 1
        if not end and len(text) == CHUNK:
            raise RunError(f"{self._path.name} has a line of more than {CHUNK:,} bytes; the file is damaged")
        self._offset += end
        return text[:end].splitlines() if end else None


def _decode(path: Path, line: bytes) -> AnyEvent:
    try:
        return decode_event(line)
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise RunError(f"{path.name} holds a line that is not an event; the file is damaged") from None
