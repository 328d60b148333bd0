"""Where runs live: names for new folders, and beginning, continuing or reusing what a folder holds."""

import re
from collections.abc import Iterator
from itertools import count, takewhile
from pathlib import Path

from winnow.config.schema import Experiment
from winnow.core import AnyEvent
from winnow.experiment.run import (
    DEFAULT_INPUTS,
    OnEvent,
    OnStart,
    Result,
    RunInputs,
    check_same_experiment,
    run_experiment,
    stored_experiment,
)
from winnow.runs import RunFolder, file_names
from winnow.runs.summary import privacy_spent_lines

RUNS_FOLDER = Path("runs")


def run_name(experiment: Experiment) -> str:
    return f"{safe_folder_name(experiment.name)}-{experiment.algorithm}-seed{experiment.seed}"


def safe_folder_name(name: str) -> str:
    """A name that is a single folder on any file system."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "run"


def unused_path(path: Path) -> Path:
    """This folder, or the first of path-2, path-3, … that is not taken."""
    return next(each for each in _numbered(path) if not _taken(each))


def latest_path(path: Path) -> Path:
    """The last of path, path-2, path-3, … that is taken; the path itself where none is."""
    return [path, *takewhile(_taken, _numbered(path))][-1]


def holds_run(path: Path) -> bool:
    return (path / file_names.LABEL).is_file()


def is_finished(path: Path, rounds: int) -> bool:
    """Whether the folder's run has its result, and as many rounds as are asked for or as its budget allows."""
    if not (path / file_names.RESULT).is_file():
        return False
    return stored_experiment(path).rounds >= rounds or budget_exhausted_reason(path) is not None


def budget_exhausted_reason(path: Path) -> str | None:
    """Why the finished run in a folder cannot go on, if its privacy budget is spent; no rounds can be added then."""
    summary = RunFolder.open(path).summary()
    if summary.stopped is None:
        return None
    spent = "; ".join(privacy_spent_lines(summary.privacy_spent))
    return f"{path} has spent its budget ({spent}) and cannot go on: {summary.stopped}"


def with_stored_rounds(experiment: Experiment, out: Path) -> Experiment:
    """The experiment with no fewer rounds than the run that it continues, for a user who did not say how many."""
    stored = stored_experiment(out).rounds if holds_run(out) else 0
    return experiment.model_copy(update={"rounds": max(experiment.rounds, stored)})


def run_in_folder(
    out: Path,
    experiment: Experiment,
    *,
    resume: bool,
    inputs: RunInputs = DEFAULT_INPUTS,
    on_start: OnStart = lambda prepared: None,
    on_event: OnEvent = lambda event: None,
) -> Result | None:
    """Run in a folder. With `resume` an unfinished run is continued and a missing one begun.

    None says that the run was finished already: there is nothing to do but to read the folder.
    """
    known = resume and holds_run(out)
    if known and is_finished(out, experiment.rounds):
        check_same_experiment(experiment, stored_experiment(out), out)
        return None
    return run_experiment(experiment, inputs=inputs, out=out, resume=known, on_start=on_start, on_event=on_event)


def stored_events(out: Path) -> Iterator[AnyEvent]:
    """The past of a run that is being resumed, read once the folder has been cut back to its checkpoint."""
    if holds_run(out):
        yield from RunFolder.open(out).events()


def _numbered(path: Path) -> Iterator[Path]:
    yield path
    yield from (path.with_name(f"{path.name}-{number}") for number in count(2))


def _taken(path: Path) -> bool:
    return path.exists() and not (path.is_dir() and not any(path.iterdir()))
