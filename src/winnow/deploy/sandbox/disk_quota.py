"""How much a job's process has written. The kernel bounds a file; how many there are, its parent has to watch."""

import os
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from threading import Event, Thread

POLL_SECONDS = 0.5
"""Seconds between two looks."""
SECTOR_BYTES = 512
MIN_FILE_BYTES = 4096
"""Bytes that any file counts, even an empty one: its name takes room too."""


class DiskQuotaMonitor(Thread):
    """Has a process ended that has written more than it may."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", places: Sequence[Path], most: int, end: Callable[[], None]
    ) -> None:
        super().__init__(name=f"disk-{process.pid}", daemon=True)
        self.exceeded = False
        self._process, self._places, self._most, self._finish = process, places, most, end
        self._over = Event()

    def run(self) -> None:
        while not self._over.wait(POLL_SECONDS) and self._process.poll() is None:
            if exceeds_quota(self._places, self._process.pid, self._most):
                self.exceeded = True
                self._finish()
                return

    def stop(self) -> None:
        self._over.set()


def exceeds_quota(places: Sequence[Path], process: int, most: int) -> bool:
    """Whether these files and folders, and deleted files that the process or its child has open, take more bytes.

    How large a deleted file is that it only has mapped nobody can tell, so that is too much in any case.
    """
    processes = _family(process)
    mapped = _mapped(places, processes)
    deleted, total = {status.st_ino: status for each in processes for status in _deleted(each)}, 0
    for status in chain(*map(_files, places), deleted.values()):
        total += max(status.st_blocks * SECTOR_BYTES, MIN_FILE_BYTES)
        if total > most:
            return True
    return bool(mapped & _mapped(places, processes) - deleted.keys())


def _files(place: Path) -> Iterator[os.stat_result]:
    waiting = [place]
    while waiting:
        path = waiting.pop()
        with suppress(OSError):  # it may go away at any moment
            status = path.lstat()
            yield status
            if stat.S_ISDIR(status.st_mode):
                waiting += path.iterdir()


def _family(process: int) -> list[int]:
    """The process and its children: one that was started ahead of its job has the job done by a child."""
    with suppress(OSError):
        return [process, *map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]
    return [process]


def _deleted(process: int) -> Iterator[os.stat_result]:
    """A thread may have a table of open files of its own; most share one, so a file is seen more than once."""
    for each in Path(f"/proc/{process}/task").glob("*/fd/*"):
        with suppress(OSError):
            status = each.stat()
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                yield status


def _mapped(places: Sequence[Path], processes: Sequence[int]) -> set[int]:
    """The numbers of deleted files of these places that the processes have mapped."""
    own, found = tuple(str(place.resolve()) for place in places), set()
    for process in processes:
        with suppress(OSError):
            for line in Path(f"/proc/{process}/maps").read_text(errors="replace").splitlines():
                *_, inode, name = line.split(maxsplit=5) if line.endswith(" (deleted)") else ("0", "")
                if name.startswith(own):
                    found.add(int(inode))
    return found
