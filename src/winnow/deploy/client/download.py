"""A downloaded job as a run folder, which everything that reads runs can read."""

import json
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from winnow.core import AnyEvent, Arrays, Evaluated, RoundFinished, Scored, Selected
from winnow.data.types import AS_GIVEN
from winnow.deploy.jobs.snapshot_file import load_snapshot
from winnow.explain.html_report import write_reports
from winnow.runs import RunFolder, RunLabel, file_names
from winnow.runs.event_log import EventLog


def write_run_folder(out: Path, config: str, files: Mapping[str, Path], *, finished: bool) -> Path:
    """Make the folder of what was downloaded: "events", "checkpoint", and a finished job's outputs by their names."""
    events = list(EventLog(files["events"])) if "events" in files else []
    label = RunLabel.read(files[file_names.LABEL]) if file_names.LABEL in files else _label(config, events)
    label = replace(label, clock="wall")
    conditions = {"labels": [AS_GIVEN], "of_client": [0] * _clients(events)}
    with RunFolder.create(out, config, conditions, label) as folder:
        for event in events:
            folder.record(event)
        if "checkpoint" in files:
            snapshot = load_snapshot(files["checkpoint"])
            folder.checkpoint(snapshot, _models(snapshot.arrays))
        if finished and file_names.RESULT in files:
            write_reports(out / file_names.REPORT, [folder.view()])
            for name in {file_names.MODEL, file_names.CARD} & files.keys():
                shutil.copyfile(files[name], out / name)
            folder.finish(json.loads(files[file_names.RESULT].read_bytes()))
    return out


def _models(arrays: Arrays) -> dict[str, Arrays]:
    """A training's best and last model; of another workflow, all that it holds at the end."""
    found: dict[str, Arrays] = {}
    for model, group in (("best", "best/"), ("last", "model/")):
        own = {path.removeprefix(group): array for path, array in arrays.items() if path.startswith(group)}
        if own:
            found[model] = own
    return found or {"last": arrays}


def _label(config: str, events: Sequence[AnyEvent]) -> RunLabel:
    """What an unfinished job is called; its metric is the one that was measured besides the loss."""
    table = tomllib.loads(config)
    measured = next((event.metrics for event in events if isinstance(event, Evaluated | RoundFinished)), {})
    names_of = {name for values in measured.values() for name in values}
    return RunLabel(
        name=table.get("name", "job"),
        algorithm=table.get("algorithm", ""),
        seed=table.get("seed", 0),
        metric=min(names_of - {"loss", "spread", "lowest_decile", "highest_decile"}, default="accuracy"),
        target=table.get("target"),
        evaluated_by=table.get("evaluation", {}).get("by", "reference"),
    )


def _clients(events: Sequence[AnyEvent]) -> int:
    """How many clients there are, as far as events tell."""
    scored = [len(event.scores) for event in events if isinstance(event, Scored)]
    selected = [int(np.max(event.clients, initial=-1)) + 1 for event in events if isinstance(event, Selected)]
    return max([*scored, *selected], default=1)
