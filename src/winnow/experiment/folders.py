"""Where runs live: names for new folders, and beginning, continuing or reusing what a folder holds."""

import re
from collections.abc import Iterator
from itertools import count, takewhile
from pathlib import Path

from winnow.core import AnyEvent
from winnow.experiment.run import (
    AS_CONFIGURED,
    Inputs,
    OnEvent,
    OnStart,
    Result,
    execute,
    refuse_other,
    stored_experiment,
)
from winnow.experiment.schema import Experiment
from winnow.runs import RunFolder, names
from winnow.runs.summary import spendings

RUNS = Path("runs")


def run_name(experiment: Experiment) -> str:
    return f"{safe(experiment.name)}-{experiment.algorithm}-seed{experiment.seed}"


def safe(name: str) -> str:
    """A name that is a single folder on any file system."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "run"


def fresh(path: Path) -> Path:
    """This folder, or the first of path-2, path-3, … that is not taken."""
    return next(each for each in _numbered(path) if not _taken(each))


def latest(path: Path) -> Path:
    """The last of path, path-2, path-3, … that is taken; the path itself where none is."""
    return [path, *takewhile(_taken, _numbered(path))][-1]


def holds_run(path: Path) -> bool:
    return (path / names.LABEL).is_file()


def is_finished(path: Path, rounds: int) -> bool:
    """Whether the folder's run has its result, and as many rounds as are asked for or as its budget allows."""
    if not (path / names.RESULT).is_file():
        return False
    return stored_experiment(path).rounds >= rounds or spent_up(path) is not None


def spent_up(path: Path) -> str | None:
    """Why the finished run in a folder cannot go on, if its privacy budget is spent; no rounds can be added then."""
    summary = RunFolder.open(path).summary()
    if summary.stopped is None:
        return None
    return f"{path} has spent its budget ({'; '.join(spendings(summary.spent))}) and cannot go on: {summary.stopped}"


def with_stored_rounds(experiment: Experiment, out: Path) -> Experiment:
    """The experiment with no fewer rounds than the run that it continues, for a user who did not say how many."""
    stored = stored_experiment(out).rounds if holds_run(out) else 0
    return experiment.model_copy(update={"rounds": max(experiment.rounds, stored)})


def run_in(
    out: Path,
    experiment: Experiment,
    *,
    resume: bool,
    inputs: Inputs = AS_CONFIGURED,
    on_start: OnStart = lambda prepared: None,
    on_event: OnEvent = lambda event: None,
) -> Result | None:
    """Run in a folder. With `resume` an unfinished run is continued and a missing one begun.

    None says that the run was finished already: there is nothing to do but to read the folder.
    """
    known = resume and holds_run(out)
    if known and is_finished(out, experiment.rounds):
        refuse_other(experiment, stored_experiment(out), out)
        return None
    return execute(experiment, inputs=inputs, out=out, resume=known, on_start=on_start, on_event=on_event)


def earlier_events(out: Path) -> Iterator[AnyEvent]:
    """The past of a run that is being resumed, read once the folder has been cut back to its checkpoint."""
    if holds_run(out):
        yield from RunFolder.open(out).events()


def _numbered(path: Path) -> Iterator[Path]:
    yield path
    yield from (path.with_name(f"{path.name}-{number}") for number in count(2))


def _taken(path: Path) -> bool:
    return path.exists() and not (path.is_dir() and not any(path.iterdir()))
