"""winnow run"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from winnow.cli.interrupts import STOPPED_BEFORE_START, exit_on_interrupt, shell_argument
from winnow.cli.options import (
    AsJson,
    DataFolder,
    Plugins,
    Quiet,
    Rounds,
    Sets,
    Source,
    complete_algorithm,
    preset_names,
)

if TYPE_CHECKING:
    from winnow.config.schema import Experiment
    from winnow.progress.timing import RoundTimer


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What the user typed."""

    source: str
    sets: tuple[str, ...]
    plugins: tuple[Path, ...]
    algorithm: str | None
    seed: int | None
    rounds: int | None
    out: Path | None
    resume: bool

    @property
    def names_folder(self) -> bool:
        """Whether the source is a run folder rather than a preset or a file."""
        path = Path(self.source)
        if self.source in preset_names():
            return False
        return path.is_dir() or (self.resume and path.suffix != ".toml" and os.sep in self.source)


def run(
    source: Source,
    sets: Sets = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Which algorithm; else the file's.",
            autocompletion=complete_algorithm,
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="The seed of all randomness.", min=0, show_default=False)
    ] = None,
    rounds: Rounds = None,
    plugins: Plugins = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The run folder; else runs/NAME-ALGORITHM-seedN.", show_default=False),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder, or begin it.")] = False,
    data: DataFolder = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    timing: Annotated[bool, typer.Option("--timing", help="Show where the time of a round goes.")] = False,
) -> None:
    """Run one experiment into a folder of its own.

    With --resume a run folder may stand in the place of the preset or file.
    """
    request = RunOptions(
        source=source,
        sets=tuple(sets or ()),
        plugins=tuple(plugins or ()),
        algorithm=algorithm,
        seed=seed,
        rounds=rounds,
        out=out,
        resume=resume,
    )
    with exit_on_interrupt(lambda: STOPPED_BEFORE_START):
        experiment, folder = _plan(request)
    with exit_on_interrupt(lambda: _how_to_resume(folder, data)):
        _run(experiment, folder, resume=resume, data=data, quiet=quiet, timing=timing)
    _answer(folder, as_json=as_json)
    _warn(experiment, folder)


def _plan(request: RunOptions) -> "tuple[Experiment, Path]":
    """What to run, and where."""
    from winnow.config.resolve import resolve
    from winnow.experiment import run_folders

    if request.names_folder:
        return _stored(request)
    experiment = resolve(
        request.source,
        sets=request.sets,
        plugins=request.plugins,
        algorithm=request.algorithm,
        seed=request.seed,
        rounds=request.rounds,
    )
    default = run_folders.RUNS_FOLDER / run_folders.run_name(experiment)
    if not request.resume:
        return experiment, request.out or run_folders.unused_path(default)
    folder = request.out or run_folders.latest_path(default)
    return experiment if request.rounds else run_folders.with_stored_rounds(experiment, folder), folder


def _stored(request: RunOptions) -> "tuple[Experiment, Path]":
    """The run that a folder holds, perhaps with more rounds."""
    from winnow.core import RunError
    from winnow.experiment.run import stored_experiment

    folder = Path(request.source)
    if not request.resume:
        raise RunError(
            f"{folder} is a folder; add --resume to continue the run in it, or name a preset or a .toml file"
        )
    changes = {
        "--set": request.sets,
        "--plugin": request.plugins,
        "--algorithm": request.algorithm,
        "--seed": request.seed,
        "--out": request.out,
    }
    for option, value in changes.items():
        if value not in (None, ()):
            raise RunError(f"{folder} is resumed as the run it is; leave out {option}, only --rounds may grow")
    stored = stored_experiment(folder)
    return stored.model_copy(update={"rounds": request.rounds or stored.rounds}), folder


def _run(experiment: "Experiment", folder: Path, *, resume: bool, data: Path | None, quiet: bool, timing: bool) -> None:
    from winnow.cli.console import say, stderr_console
    from winnow.cli.dataset_download import ensure_downloaded
    from winnow.experiment.run import RunInputs
    from winnow.experiment.run_folders import budget_exhausted_reason, run_in_folder, stored_events
    from winnow.progress.live_display import Progress
    from winnow.progress.timing import RoundTimer

    ensure_downloaded(experiment.data, data)
    instruments = RoundTimer() if timing else None
    earlier = stored_events(folder) if resume else ()
    with Progress(experiment, None if quiet else stderr_console(), earlier) as progress:
        watchers: list[Progress | RoundTimer] = [progress] if instruments is None else [progress, instruments]
        made = run_in_folder(
            folder,
            experiment,
            resume=resume,
            inputs=RunInputs(data_directory=data),
            on_start=lambda prepared: [watcher.started(prepared) for watcher in watchers],
            on_event=lambda event: [watcher.seen(event) for watcher in watchers],
        )
    if made is None:
        say(budget_exhausted_reason(folder) or f"{folder} was finished already; ask for more with --rounds")
    elif instruments is not None:
        _show_profile(instruments)


def _show_profile(instruments: "RoundTimer") -> None:
    from winnow.cli.console import say, stderr_console
    from winnow.terminal_tables import table

    profiled = instruments.close()
    if profiled is not None:
        rows, roofline = profiled.lines()
        stderr_console().print(table(("part", "ms a round", "share"), rows))
        say(roofline)


def _answer(folder: Path, *, as_json: bool) -> None:
    from winnow.cli.console import stdout_console, write_json
    from winnow.cli.render_results import run_record, run_summary
    from winnow.runs import RunFolder

    view = RunFolder.open(folder)
    if as_json:
        write_json(run_record(view))
    else:
        stdout_console().print(run_summary(view))


def _warn(experiment: "Experiment", folder: Path) -> None:
    """Say that the settings undo a part of the privacy that they ask for, if they do."""
    from winnow.cli.console import say
    from winnow.explain.privacy_lint import privacy_warnings

    count = sum(1 for _ in privacy_warnings(experiment))
    if count:
        say(f"{count} privacy warning{'' if count == 1 else 's'}: winnow explain {shell_argument(folder)}")


def _how_to_resume(folder: Path, data: Path | None) -> str:
    from winnow.experiment.run_folders import holds_run

    if not holds_run(folder):
        return STOPPED_BEFORE_START
    where = "" if data is None else f" --data {shell_argument(data)}"
    return f"winnow: stopped; continue with: winnow run {shell_argument(folder)} --resume{where}"
