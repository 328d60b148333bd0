"""Whether a run folder's files are as they were when its checkpoint was taken."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from winnow.core import RunError
from winnow.runs import file_names
from winnow.runs.checkpoint import CheckpointInfo
from winnow.runs.digests import BLOCK, LogDigest, digest_of
from winnow.runs.event_log import EventLog

REPAIR_ADVICE = "restore the file from a backup, or repeat the run with another --out"


def read_description_files(folder: Path) -> dict[str, bytes]:
    """The small files that say what the run is."""
    return {name: (folder / name).read_bytes() for name in (file_names.LABEL, file_names.CONFIG, file_names.CONDITIONS)}


def check_integrity(folder: Path, covered: CheckpointInfo, described: Mapping[str, bytes]) -> None:
    """Raise a RunError that names the first file that differs, and where.

    `described` was read before the checkpoint: one that is being exchanged for a longer run's then never looks damaged.
    """
    for name, allowed in covered.files.items():
        if digest_of(described[name]) not in allowed:
            raise RunError(f"{folder / name} is damaged: it has changed since round {covered.round}; {REPAIR_ADVICE}")
    log = folder / file_names.EVENTS
    if not log.exists() or log.stat().st_size < covered.events_bytes:
        raise RunError(f"{log} is damaged: it is missing or shorter than after round {covered.round}; {REPAIR_ADVICE}")
    found = LogDigest.of(log, covered.events_bytes).blocks()
    if covered.events_blocks and found != covered.events_blocks:
        _name_damage(log, found, covered)


def _name_damage(log: Path, found: Sequence[str], covered: CheckpointInfo) -> None:
    """Which line it is, where that can be told; else where the first block that differs begins and ends."""
    for _ in EventLog(log):
        pass  # this names a line that is no event any more
    block = next(at for at, (one, other) in enumerate(zip_longest(found, covered.events_blocks)) if one != other)
    with log.open("rb") as file:
        before = file.read(block * BLOCK).count(b"\n")
        within = file.read(min(BLOCK, covered.events_bytes - block * BLOCK)).count(b"\n")
    raise RunError(
        f"{log} is damaged: it has changed since round {covered.round}, somewhere between lines "
        f"{before + 1} and {before + max(within, 1)}; {REPAIR_ADVICE}"
    )
