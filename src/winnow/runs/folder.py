"""The folder of one run. Kill the process at any moment, resume, and every file ends up as if nothing had happened.

This holds because of the order of writing:

1. `run.json` is written last when a folder is created, so a folder either holds a run or does not.
2. Events are only appended. A checkpoint is put in place at once, after the events and models that it covers, and knows
   the length of the event log at that moment, and the digests of the log and of the files that say what the run is.
   Resuming compares them and cuts the log back to that length.
3. Everything else follows from these: metrics.csv is made again from the log, models and the result are written over by
   the rounds that are run again, which a seed makes the same.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from winnow.core import AnyEvent, Arrays, RunError, Scored, Snapshot
from winnow.runs import file_names
from winnow.runs.atomic_write import FileLock, is_leftover, one_line_errors, write_atomically, write_text_atomically
from winnow.runs.checkpoint import Checkpoint, load_checkpoint, save_arrays, save_checkpoint
from winnow.runs.digests import LogDigest, digest_of
from winnow.runs.evaluation_record import EvaluationRecord
from winnow.runs.event_log import EventLog, encode_event, json_default
from winnow.runs.history import RunHistory
from winnow.runs.metrics_csv import MetricsFile
from winnow.runs.run_identity_record import RunLabel
from winnow.runs.verify_files import check_integrity, read_description_files
from winnow.runs.view import RunView

MAX_LOGGED_SCORES = 2_000
"""Scores of larger populations are not logged: they would outweigh everything else in the folder."""


class RunFolder:
    """A run folder that this process, and no other, writes."""

    def __init__(self, path: Path, lock: FileLock, checkpoint: Checkpoint | None = None) -> None:
        """Take over a folder as of its checkpoint; `create` and `resume` are the ways in."""
        length = checkpoint.events_bytes if checkpoint else 0
        self.path = path
        self._files = {name: [digest_of(content)] for name, content in read_description_files(path).items()}
        self._digest = LogDigest.of(path / file_names.EVENTS, length)
        self._lock = lock
        self._spent_before = checkpoint.wall_seconds if checkpoint else 0.0
        self._began = time.monotonic()
        self._round = checkpoint.round if checkpoint else 0
        self._track = RunHistory()
        self._metrics = MetricsFile(path / file_names.METRICS)
        self._events = (path / file_names.EVENTS).open("ab")
        try:
            self._events.truncate(length)
            self._events.seek(0, os.SEEK_END)
            for event in EventLog(path / file_names.EVENTS):
                self._add_metrics(event)
        except BaseException:
            self._events.close()
            raise

    @classmethod
    def create(cls, path: Path, config_text: str, conditions: Mapping[str, Any], label: RunLabel) -> Self:
        """Begin a run in a folder that is new, empty, or left over by a process killed right here."""
        with one_line_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            _check_holds_nothing(path)
            lock = FileLock(path / file_names.LOCK)
            try:
                _check_holds_nothing(path)
                write_text_atomically(path / file_names.CONFIG, config_text)
                write_text_atomically(path / file_names.CONDITIONS, json.dumps(conditions, default=json_default) + "\n")
                write_text_atomically(path / file_names.LABEL, label.to_json())
                return cls(path, lock)
            except BaseException:
                lock.release()
                raise

    @classmethod
    def resume(cls, path: Path) -> tuple[Self, Snapshot | None]:
        """Take up a run at its last checkpoint; without one (None) it begins again."""
        if not (path / file_names.LABEL).is_file():
            raise RunError(f"{path} contains no run to resume; remove --resume to start one")
        with one_line_errors(path):
            lock = FileLock(path / file_names.LOCK)
            try:
                checkpoint = _last_checkpoint(path)
                for leftover in filter(is_leftover, list(path.iterdir())):
                    leftover.unlink()
                return cls(path, lock, checkpoint), checkpoint.snapshot if checkpoint else None
            except BaseException:
                lock.release()
                raise

    @staticmethod
    def open(path: Path) -> RunView:
        """The run for reading alone, finished or not."""
        return RunView.read(path)

    @property
    def wall_seconds(self) -> float:
        """How long processes have worked on this run, without what was lost to kills."""
        return self._spent_before + time.monotonic() - self._began

    def record(self, event: AnyEvent) -> None:
        """Append an event to the log."""
        if isinstance(event, Scored) and len(event.scores) > MAX_LOGGED_SCORES:
            return
        with one_line_errors(self.path):
            line = encode_event(event)
            self._events.write(line)
            self._digest.update(line)
            self._round = event.round
            self._add_metrics(event)

    def checkpoint(self, snapshot: Snapshot, models: Mapping[str, Arrays]) -> None:
        """Make everything recorded so far permanent; `models` (best, last) become files of their own.

        Call it between rounds, with the workflow's own snapshot, and after the last one, before what ends the run is
        recorded: a run that is continued with more rounds has none of that.
        """
        with one_line_errors(self.path):
            self._events.flush()
            os.fsync(self._events.fileno())
            for name, arrays in models.items():
                save_arrays(self.path / file_names.model_file(name), arrays, {"format": "pt"})
            checkpoint = Checkpoint(
                snapshot=snapshot,
                round=self._round,
                events_bytes=self._events.tell(),
                wall_seconds=self.wall_seconds,
                events_blocks=self._digest.blocks(),
                files=self._files,
            )
            save_checkpoint(self.path / file_names.CHECKPOINT, checkpoint)

    def extend(self, config_text: str) -> None:
        """Ask more of a run that may have been finished: it is unfinished again before the new configuration stands.

        The checkpoint is told of both configurations first: a kill in between leaves either of them, and a full disk
        leaves a finished run finished.
        """
        old, new = self._files[file_names.CONFIG], [digest_of(config_text.encode())]
        with one_line_errors(self.path):
            if (self.path / file_names.CHECKPOINT).exists():
                checkpoint = load_checkpoint(self.path / file_names.CHECKPOINT)
                both = {**self._files, file_names.CONFIG: [*old, *new]}
                save_checkpoint(self.path / file_names.CHECKPOINT, replace(checkpoint, files=both))
            for outcome in (file_names.RESULT, file_names.EVALUATION):
                (self.path / outcome).unlink(missing_ok=True)
            write_text_atomically(self.path / file_names.CONFIG, config_text)
        self._files[file_names.CONFIG] = new

    def save_evaluation(self, record: EvaluationRecord) -> None:
        """Write evaluation.json, before `finish`."""
        with one_line_errors(self.path):
            text = record.to_json()
            write_atomically(self.path / file_names.EVALUATION, lambda temporary: temporary.write_bytes(text))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write result.json: the run is done."""
        text = msgspec.json.format(msgspec.json.encode(result, enc_hook=json_default), indent=2) + b"\n"
        with one_line_errors(self.path):
            write_atomically(self.path / file_names.RESULT, lambda temporary: temporary.write_bytes(text))

    def view(self) -> RunView:
        """What has been written so far, for reading."""
        with one_line_errors(self.path):
            self._events.flush()
        return RunView.read(self.path)

    def close(self) -> None:
        with one_line_errors(self.path):
            try:
                self._events.close()
            finally:
                self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _add_metrics(self, event: AnyEvent) -> None:
        """A round is over: bring both files up to date for those who watch."""
        point = self._track.follow(event)
        if point is not None:
            self._events.flush()
            self._metrics.add(point)


def check_folder_is_free(path: Path) -> None:
    """Refuse a folder in which `RunFolder.create` would fail, before hours of work; nothing of it is left behind."""
    with one_line_errors(path):
        missing = [each for each in (path, *path.parents) if not each.exists()]
        path.mkdir(parents=True, exist_ok=True)
        try:
            _check_holds_nothing(path)
            if not os.access(path, os.W_OK | os.X_OK):
                raise RunError(f"you may not write in the folder {path}; choose another --out")
        finally:
            for each in missing:
                each.rmdir()


def _check_holds_nothing(path: Path) -> None:
    """A new run may use a folder that holds nothing, or what a process killed while creating a run left behind."""
    if (path / file_names.RESULT).exists():
        raise RunError(f"{path} contains a finished run; choose another --out")
    if (path / file_names.LABEL).exists():
        raise RunError(
            f"{path} contains an unfinished run; continue it with --resume (resume=True in Python) or use another --out"
        )
    ours = {file_names.LOCK, file_names.CONFIG, file_names.CONDITIONS, file_names.FEATURES}
    if any(entry.name not in ours and not is_leftover(entry) for entry in path.iterdir()):
        raise RunError(f"{path} is not empty and contains no run; choose another --out")


def _last_checkpoint(path: Path) -> Checkpoint | None:
    if not (path / file_names.CHECKPOINT).exists():
        return None
    checkpoint = load_checkpoint(path / file_names.CHECKPOINT)
    check_integrity(path, checkpoint, read_description_files(path))
    return checkpoint
