"""A downloaded job as a run folder, which everything that reads runs can read."""

import json
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from winnow.core import (
    AnyEvent,
    Arrays,
    Assessed,
    Evaluated,
    PolicyApplied,
    Rejected,
    RoundFinished,
    RunError,
    Scored,
    Selected,
    Snapshot,
)
from winnow.core.untrusted_text import error_line, one_line
from winnow.data.types import AS_GIVEN
from winnow.deploy.client.submit_question import read_answer
from winnow.deploy.jobs.snapshot_file import load_snapshot
from winnow.explain.report_with_privacy import write_run_report
from winnow.learn.metrics import METRICS, RESERVED_NAMES
from winnow.runs import EvaluationRecord, RunFolder, RunLabel, file_names
from winnow.runs.event_log import EventLog
from winnow.runs.view import ConditionsRecord

MAX_CONDITIONS_BYTES = 1 << 26
MAX_CLIENT_NAME = 200
MAX_CLIENTS = 10_000_000
"""A server may name any number of a client, and each number up to it takes memory."""


def write_run_folder(out: Path, config: str, files: Mapping[str, Path], *, submitted: float, finished: bool) -> Path:
    """Make the folder of what was downloaded: "events", "checkpoint", and a finished job's outputs by their names."""
    try:
        return _write_run_folder(out, config, files, submitted=submitted, finished=finished)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise RunError(f"the server's description of the job cannot be read: {error_line(error)}") from error


def _write_run_folder(out: Path, config: str, files: Mapping[str, Path], *, submitted: float, finished: bool) -> Path:
    events = list(EventLog(files["events"])) if "events" in files else []
    label = RunLabel.read(files[file_names.LABEL]) if file_names.LABEL in files else _label(config, events)
    label = replace(label, clock="wall", started=_utc(submitted))
    snapshot = load_snapshot(files["checkpoint"]) if "checkpoint" in files else None
    conditions = _conditions(_told(files, snapshot), _clients(events))
    with RunFolder.create(out, config, conditions, label) as folder:
        for event in events:
            folder.record(event)
        if snapshot is not None:
            folder.checkpoint(snapshot, _models(snapshot.arrays))
        if finished and file_names.EVALUATION in files:
            evaluation = EvaluationRecord.read(files[file_names.EVALUATION])
            if evaluation is not None:
                folder.save_evaluation(evaluation)
        if finished and file_names.RESULT in files:
            for name in {file_names.MODEL, file_names.CARD, file_names.REFERENCE_SUMMARY} & files.keys():
                shutil.copyfile(files[name], out / name)
            if file_names.ANSWER in files:
                read_answer(files[file_names.ANSWER].read_bytes())
                shutil.copyfile(files[file_names.ANSWER], out / file_names.ANSWER)
            folder.finish(json.loads(files[file_names.RESULT].read_bytes()))
            if label.kind == "training":
                write_run_report(folder.view())
    return out


def _utc(seconds: float) -> str:
    """When that was, as a label has it; empty where what the server says is no time."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OSError, OverflowError, ValueError):
        return ""


def _models(arrays: Arrays) -> dict[str, Arrays]:
    """A training's best and last model; of another workflow, all that it holds at the end."""
    found: dict[str, Arrays] = {}
    for model, group in (("best", "best/"), ("last", "model/")):
        own = {path.removeprefix(group): array for path, array in arrays.items() if path.startswith(group)}
        if own:
            found[model] = own
    return found or {"last": arrays}


def _label(config: str, events: Sequence[AnyEvent]) -> RunLabel:
    """What an unfinished job is called; its metric is the one in its configuration, or the first that was measured."""
    table = tomllib.loads(config)
    measured = next((event.metrics for event in events if isinstance(event, Evaluated | RoundFinished)), {})
    first = next((name for values in measured.values() for name in values if name not in RESERVED_NAMES), "accuracy")
    metric = table.get("metric") or first
    return RunLabel(
        name=table.get("name", "job"),
        algorithm=table.get("algorithm", ""),
        seed=table.get("seed", 0),
        metric=metric,
        target=table.get("target"),
        evaluated_by=table.get("evaluation", {}).get("by", "reference"),
        lower_is_better=metric in METRICS and METRICS[metric].lower_is_better,
    )


def _told(files: Mapping[str, Path], snapshot: Snapshot | None) -> ConditionsRecord:
    """What the server says of clients: in a file once the job has finished, before that with its checkpoint."""
    with suppress(ValueError):
        if (path := files.get(file_names.CONDITIONS)) is not None and path.stat().st_size <= MAX_CONDITIONS_BYTES:
            return msgspec.json.decode(path.read_bytes(), type=ConditionsRecord)
        if snapshot is not None:
            return msgspec.convert(snapshot.values.get("clients"), ConditionsRecord)
    return ConditionsRecord(labels=[], of_client=[])


def _conditions(told: ConditionsRecord, clients: int) -> dict[str, Any]:
    """What clients are called and how many samples they have, if the server says it of every one; it cannot know what
    their data are like.
    """
    if len(told.of_client) < clients:
        return {"labels": [AS_GIVEN], "of_client": [0] * clients, "names": [], "sizes": []}
    names = [one_line(name)[:MAX_CLIENT_NAME] for name in told.names]
    return {"labels": [AS_GIVEN], "of_client": [0] * len(told.of_client), "names": names, "sizes": told.sizes}


def _clients(events: Sequence[AnyEvent]) -> int:
    """How many clients there are, as far as events tell."""
    scored = [len(event.scores) for event in events if isinstance(event, Scored)]
    listed = [int(np.max(event.clients, initial=-1)) + 1 for event in events if isinstance(event, Selected | Assessed)]
    single = [event.client + 1 for event in events if isinstance(event, Rejected | PolicyApplied)]
    clients = max([*scored, *listed, *single], default=1)
    if clients > MAX_CLIENTS:
        raise RunError(f"the server's log names client {clients - 1:,}; a job has {MAX_CLIENTS:,} at most")
    return clients
