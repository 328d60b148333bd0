"""How much a job's process has written. The kernel limits the size of a file; its supervisor watches their sum."""

import os
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from threading import Event, Thread

from winnow.deploy.sandbox.forked_process_handle import ForkedProcess

POLL_SECONDS = 0.5
"""Seconds between two checks."""
SECTOR_BYTES = 512
MIN_FILE_BYTES = 4096
"""Bytes that any file counts, even an empty one: its name takes space too."""


class DiskQuotaMonitor(Thread):
    """Ends a process that has written more than its limit."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes] | ForkedProcess",
        places: Sequence[Path],
        limit: int,
        end: Callable[[], None],
    ) -> None:
        super().__init__(name=f"disk-{process.pid}", daemon=True)
        self.exceeded = False
        self._process, self._places, self._limit, self._end_process = process, places, limit, end
        self._stopped = Event()

    def run(self) -> None:
        while not self._stopped.wait(POLL_SECONDS) and self._process.poll() is None:
            if exceeds_quota(self._places, self._process.pid, self._limit):
                self.exceeded = True
                self._end_process()
                return

    def stop(self) -> None:
        """Watch no longer. The thread ends by itself: it may be looking through a job's millions of files."""
        self._stopped.set()


def exceeds_quota(places: Sequence[Path], process: int, limit: int) -> bool:
    """Whether these files and folders, and deleted files that the process or its child has open, take more bytes.

    The size of a deleted file that is only mapped cannot be known, so any such file exceeds the quota.
    """
    processes = _family(process)
    mapped = _mapped(places, processes)
    deleted, total = {status.st_ino: status for each in processes for status in _deleted(each)}, 0
    for status in chain(*map(_files, places), deleted.values()):
        total += max(status.st_blocks * SECTOR_BYTES, MIN_FILE_BYTES)
        if total > limit:
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
    """The process and its children: a preloaded process runs the job in a child."""
    with suppress(OSError):
        return [process, *map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]
    return [process]


def _deleted(process: int) -> Iterator[os.stat_result]:
    """A thread may have its own table of open files; most share one, so a file may be seen more than once."""
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
