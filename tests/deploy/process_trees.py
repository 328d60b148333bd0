"""Processes and all that they started. Job processes have own sessions, and end a moment after their parents."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from waiting import eventually


class Seen(NamedTuple):
    """A process, told from a later one with the same number by when it started."""

    number: int
    started: str

    @property
    def running(self) -> bool:
        return self in _seen(self.number)


def tree(process: int) -> set[Seen]:
    """A process and all that it started, directly or not."""
    found = _seen(process)
    for listing in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = listing.read_text().split()
        except OSError:  # the thread has ended
            continue
        for child in children:
            found |= tree(int(child))
    return found


def wait_until_ended(processes: Iterable[Seen]) -> None:
    """Until none of them runs."""
    waiting = set(processes)
    eventually(
        lambda: not any(each.running for each in waiting),
        lambda: f"still running: {[_command(each.number) for each in waiting if each.running]}",
    )


def _seen(process: int) -> set[Seen]:
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return set()
    return set() if state in "ZX" else {Seen(process, fields[18])}


def _command(process: int) -> str:
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return str(process)
    return f"{process} {command.replace(bytes(1), b' ').decode(errors='replace')}"
