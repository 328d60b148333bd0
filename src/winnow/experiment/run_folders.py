"""Where runs live: names for new folders, and what a folder holds."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count, takewhile
from pathlib import Path

from winnow.config.resolve import experiment_from_table
from winnow.config.schema import Experiment
from winnow.core import AnyEvent, RunError
from winnow.runs import RunFolder, file_names
from winnow.runs.atomic_write import one_line_errors
from winnow.runs.summary import privacy_spent_lines

RUNS_FOLDER = Path("runs")


def run_name(experiment: Experiment) -> str:
    return f"{safe_folder_name(experiment.name)}-{experiment.algorithm}-seed{experiment.seed}"


def safe_folder_name(name: str) -> str:
    """A name that is a single folder on any file system."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "run"


@contextmanager
def claim_folder(path: Path, *, given: bool) -> Iterator[Path]:
    """A folder for a new run: one that the user has given, or else this one or the first of path-2, path-3, …

    The latter is created here, so that nobody else takes the same number; where nothing comes of the run it goes again.
    """
    folder = path if given else _create_first_free(path)
    try:
        yield folder
    finally:
        if not given:
            with suppress(OSError):
                folder.rmdir()  # refuses a folder with something in it


def _create_first_free(path: Path) -> Path:
    for folder in _numbered(path):
        with one_line_errors(folder), suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError("numbers do not end")


def latest_path(path: Path) -> Path:
    """The last of path, path-2, path-3, … that holds something; the path itself where none does."""
    return [path, *filter(_holds_something, takewhile(Path.exists, _numbered(path)))][-1]


def holds_run(path: Path) -> bool:
    return (path / file_names.LABEL).is_file()


def runs_below(folder: Path) -> list[Path]:
    """The runs in a folder, those of comparisons in it too, by name; the folder itself if it is one."""
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder")
    found = []
    for place, names, files in os.walk(folder):
        if file_names.LABEL in files:
            found.append(Path(place))
            names.clear()
    return sorted(found)


def stored_experiment(path: Path) -> Experiment:
    """The experiment that a run folder holds."""
    view = RunFolder.open(path)
    return experiment_from_table(view.config, str(path / file_names.CONFIG))


def check_same_experiment(asked: Experiment, stored: Experiment, out: Path) -> None:
    """A run can only be resumed as what it is; more rounds may be asked for."""
    old, new = stored.model_dump(), asked.model_dump()
    left_open = {"execution": "auto", "device": "auto", "chunk": None}  # what a run chooses for its machine
    chosen = {key: value for key, value in new["engine"].items() if key not in left_open or value != left_open[key]}
    new["engine"] = old["engine"] | chosen
    differing = [key for key in new if key not in ("rounds", "tracking") and new[key] != old[key]]
    if differing:
        raise RunError(
            f"{out} holds a run with a different {differing[0]}; resume it without options, or choose another --out"
        )
    if asked.rounds < stored.rounds:
        raise RunError(
            f"{out} holds a run of {stored.rounds} rounds; set --rounds to {stored.rounds} or more, "
            "or choose another --out"
        )


def is_finished(out: Path, experiment: Experiment) -> bool:
    """Whether the folder holds this experiment's result, with as many rounds as asked for or as its budget allows."""
    if not (holds_run(out) and (out / file_names.RESULT).is_file()):
        return False
    stored = stored_experiment(out)
    if stored.rounds < experiment.rounds and budget_exhausted_reason(out) is None:
        return False
    check_same_experiment(experiment, stored, out)
    return True


def budget_exhausted_reason(path: Path) -> str | None:
    """Why the finished run in a folder cannot continue, if its privacy budget is spent; no rounds can be added then."""
    summary = RunFolder.open(path).summary()
    if summary.stopped is None:
        return None
    spent = "; ".join(privacy_spent_lines(summary.privacy_spent))
    return f"{path} has spent its privacy budget ({spent}) and cannot continue: {summary.stopped}"


def with_stored_rounds(experiment: Experiment, out: Path) -> Experiment:
    """The experiment with no fewer rounds than the run that it continues, for a user who gave no number."""
    stored = stored_experiment(out).rounds if holds_run(out) else 0
    return experiment.model_copy(update={"rounds": max(experiment.rounds, stored)})


def stored_events(out: Path) -> Iterator[AnyEvent]:
    """The past of a run that is being resumed, read once the folder has been cut back to its checkpoint."""
    if holds_run(out):
        yield from RunFolder.open(out).events()


def _numbered(path: Path) -> Iterator[Path]:
    yield path
    yield from (path.with_name(f"{path.name}-{number}") for number in count(2))


def _holds_something(path: Path) -> bool:
    return path.is_dir() and any(path.iterdir())
