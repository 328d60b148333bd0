"""The runs below some folders, in memory alone: what is needed to list them, read again only where files changed."""

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from winnow.core import RunError
from winnow.runs import RunLabel, file_names
from winnow.runs.atomic_write import is_locked, one_line_errors
from winnow.runs.run_identity_record import TRAINING
from winnow.web.damaged_run import damage_in_one_line
from winnow.web.log_tail import LogCutBack, LogTail
from winnow.web.run_files import check_run_files
from winnow.web.run_progress import RunProgress

RunState: TypeAlias = Literal["running", "finished", "stopped", "interrupted", "damaged"]
MAX_RUNS, MAX_DEPTH = 20_000, 8
FRESH_SECONDS = 0.8
"""Folders are not looked through more often than this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedRun:
    """A run as the list shows it. `key` names it in addresses; its path never does."""

    key: str
    path: Path
    shown: str
    """Its folder, as seen from the one that was given."""
    state: RunState
    label: RunLabel | None = None
    rounds: int = 0
    best: float | None = None
    seconds: float = 0.0
    wh: float = 0.0
    privacy: Mapping[str, float] = field(default_factory=dict)
    started: str = ""
    problem: str = ""
    """Why it cannot be read."""

    @property
    def is_training(self) -> bool:
        return self.label is None or self.label.kind == TRAINING


@dataclass(frozen=True, kw_only=True)
class _BestValue:
    value: float | None = None


@dataclass(frozen=True, kw_only=True)
class _ListedResult:
    """What the list takes from result.json."""

    rounds: int
    best: _BestValue | None = None
    seconds: float | None = None
    wh: float | None = None
    privacy: dict[str, float | None] = field(default_factory=dict)
    stopped: str | None = None


@dataclass(kw_only=True)
class _Known:
    """A run folder that has been read, and as of when."""

    stamp: tuple[int, ...]
    run: IndexedRun
    tail: LogTail | None = None
    progress: RunProgress | None = None


class RunIndex:
    """All runs below `roots`. Safe to be asked from several threads."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = [root.absolute() for root in roots]
        self._known: dict[str, _Known] = {}
        self._by_key: dict[str, IndexedRun] = {}
        self._looked, self._lock = -FRESH_SECONDS, threading.Lock()
        self.version = 0
        """Changes whenever the list does."""

    def runs(self) -> list[IndexedRun]:
        """The latest first."""
        self.refresh()
        return sorted(self._by_key.values(), key=lambda run: (run.started, run.shown), reverse=True)

    def find(self, key: str) -> IndexedRun | None:
        self.refresh()
        return self._by_key.get(key)

    def refresh(self) -> None:
        """Look through the folders, unless that was done a moment ago."""
        with self._lock:
            if time.monotonic() - self._looked < FRESH_SECONDS:
                return
            found = {folder: self._read(folder, root) for root in self._roots for folder in _run_folders(root)}
            by_key = {known.run.key: known.run for known in found.values()}
            self._known = found
            if by_key != self._by_key:
                self._by_key, self.version = by_key, self.version + 1
            self._looked = time.monotonic()

    def _read(self, folder: str, root: Path) -> _Known:
        stamp, known = files_stamp(folder), self._known.get(folder)
        if known is not None and known.stamp == stamp and known.run.state not in ("running", "interrupted"):
            return known
        path = Path(folder)
        key = sha256(os.fsencode(path)).hexdigest()[:20]
        shown = root.name if path == root else str(path.relative_to(root))
        try:
            with one_line_errors(path), damage_in_one_line(shown):
                check_run_files(path)
                return _read_run(path, key, shown, stamp, known)
        except (RunError, LogCutBack) as error:
            problem = str(error) or "its log was cut back; load the page again"
            return _Known(
                stamp=stamp, run=IndexedRun(key=key, path=path, shown=shown, state="damaged", problem=problem)
            )


def _read_run(path: Path, key: str, shown: str, stamp: tuple[int, ...], known: _Known | None) -> _Known:
    label = RunLabel.read(path / file_names.LABEL)
    if (path / file_names.RESULT).exists():
        return _Known(stamp=stamp, run=_finished(path, key, shown, label))
    same = known is not None and known.run.label == label and known.tail is not None and known.progress is not None
    tail, progress = (known.tail, known.progress) if same and known else (None, None)
    if tail is None or progress is None:
        tail, progress = LogTail(path / file_names.EVENTS), RunProgress(label)
    try:
        progress.follow(tail.new_events())
    except LogCutBack:  # it was resumed from its checkpoint
        tail, progress = LogTail(path / file_names.EVENTS), RunProgress(label)
        progress.follow(tail.new_events())
    run = IndexedRun(
        key=key,
        path=path,
        shown=shown,
        state="running" if is_locked(path / file_names.LOCK) else "interrupted",
        label=label,
        rounds=progress.rounds,
        best=progress.best,
        seconds=progress.seconds,
        wh=progress.wh,
        privacy=progress.privacy,
        started=_started(path, label),
    )
    return _Known(stamp=stamp, run=run, tail=tail, progress=progress)


def _finished(path: Path, key: str, shown: str, label: RunLabel) -> IndexedRun:
    try:
        result = msgspec.json.decode((path / file_names.RESULT).read_bytes(), type=_ListedResult)
    except ValueError as error:
        raise RunError(f"{file_names.RESULT} is damaged: {error}") from None
    return IndexedRun(
        key=key,
        path=path,
        shown=shown,
        state="stopped" if result.stopped else "finished",
        label=label,
        rounds=result.rounds,
        best=result.best.value if result.best else None,
        seconds=result.seconds or 0.0,
        wh=result.wh or 0.0,
        privacy={name: value for name, value in result.privacy.items() if value is not None},
        started=_started(path, label),
    )


def _started(path: Path, label: RunLabel) -> str:
    """When, in UTC; a run of an earlier version is dated by its label's file."""
    written = (path / file_names.LABEL).stat().st_mtime
    return label.started or datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds")


def _run_folders(root: Path) -> Iterator[str]:
    """Folders with a run, which are not looked through themselves; links are not followed. As texts: a list of a
    thousand is looked through every few seconds, and to make paths of them takes as long as to look.
    """
    waiting, found = [(str(root), 0)], 0
    while waiting and found < MAX_RUNS:
        folder, depth = waiting.pop()
        if os.path.lexists(f"{folder}/{file_names.LABEL}"):
            found += 1
            yield folder
        elif depth < MAX_DEPTH:
            waiting += [(path, depth + 1) for path in _subfolders(folder)]


def _subfolders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def files_stamp(folder: str | Path) -> tuple[int, ...]:
    """What changes whenever one of the files that tell of rounds and results does."""
    stamp: list[int] = []
    for name in ("", file_names.LABEL, file_names.RESULT, file_names.EVENTS):
        try:
            found = os.lstat(f"{folder}/{name}")
            stamp += [found.st_mtime_ns, found.st_size]
        except OSError:
            stamp += [0, 0]
    return tuple(stamp)
