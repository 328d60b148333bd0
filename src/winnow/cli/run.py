"""winnow run"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from winnow.cli.interrupts import STOPPED_BEFORE_START, exit_on_interrupt, shell_argument
from winnow.cli.options import (
    AlgorithmName,
    AsJson,
    DataFolder,
    Plugins,
    Quiet,
    Rounds,
    Seed,
    Sets,
    Source,
    Targets,
    preset_names,
)

if TYPE_CHECKING:
    from winnow.config.schema import Experiment
    from winnow.progress.time_breakdown import RoundTimer


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
    def source_is_run_folder(self) -> bool:
        """Whether the source is a run folder rather than a preset or a file."""
        path = Path(self.source)
        if self.source in preset_names():
            return False
        return path.is_dir() or (self.resume and path.suffix != ".toml" and os.sep in self.source)


def run(
    source: Source,
    targets: Targets = None,
    sets: Sets = None,
    algorithm: AlgorithmName = None,
    seed: Seed = None,
    rounds: Rounds = None,
    plugins: Plugins = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run folder; default: runs/NAME-ALGORITHM-seedN.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder, or start it.")] = False,
    data: DataFolder = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    timing: Annotated[bool, typer.Option("--timing", help="Show how the time of a round is spent.")] = False,
) -> None:
    """Run one experiment in its own folder.

    With --resume, the argument may be a run folder instead of a preset or file.
    """
    from winnow.cli.targets_option import with_targets

    options = RunOptions(
        source=source,
        sets=with_targets(sets or (), targets, "run", source),
        plugins=tuple(plugins or ()),
        algorithm=algorithm,
        seed=seed,
        rounds=rounds,
        out=out,
        resume=resume,
    )
    with exit_on_interrupt(lambda: STOPPED_BEFORE_START):
        from winnow.cli.console import say, stderr_console
        from winnow.cli.download_progress import ensure_downloaded
        from winnow.experiment.build_training_workflow import RunInputs
        from winnow.experiment.run import run_experiment
        from winnow.experiment.run_folders import budget_exhausted_reason, claim_folder, is_finished, stored_events
        from winnow.progress.encoding_display import EncodingDisplay
        from winnow.progress.live_display import Progress
        from winnow.progress.time_breakdown import RoundTimer

        experiment, path = _experiment_and_path(options)
    new = not (resume or out)
    with claim_folder(path, given=not new) as folder, exit_on_interrupt(lambda: _how_to_resume(folder, data)):
        if resume and is_finished(folder, experiment):
            say(budget_exhausted_reason(folder) or f"{folder} is already finished; use --rounds to add rounds")
        else:
            ensure_downloaded(experiment.data, data)
            earlier = stored_events(folder) if resume else ()
            timer = RoundTimer() if timing else None
            console = None if quiet else stderr_console()
            with Progress(experiment, console, earlier) as progress:
                watchers: list[Progress | RoundTimer] = [progress, timer] if timer else [progress]
                run_experiment(
                    experiment,
                    inputs=RunInputs(data_directory=data, on_encoded=EncodingDisplay(console)),
                    out=folder,
                    resume=resume,
                    on_start=lambda prepared: [watcher.on_start(prepared) for watcher in watchers],
                    on_event=lambda event: [watcher.on_event(event) for watcher in watchers],
                )
            if timer:
                _show_timing(timer)
    _show_result(folder, as_json=as_json)
    _warn(experiment, folder)


def _experiment_and_path(options: RunOptions) -> "tuple[Experiment, Path]":
    """What to run, and where; a new run without --out may get a number after the name."""
    from winnow.config.resolve import resolve
    from winnow.experiment import run_folders

    if options.source_is_run_folder:
        return _stored(options)
    experiment = resolve(
        options.source,
        sets=options.sets,
        plugins=options.plugins,
        algorithm=options.algorithm,
        seed=options.seed,
        rounds=options.rounds,
    )
    default = run_folders.RUNS_FOLDER / run_folders.run_name(experiment)
    if not options.resume:
        return experiment, options.out or default
    folder = options.out or run_folders.latest_path(default)
    return experiment if options.rounds else run_folders.with_stored_rounds(experiment, folder), folder


def _stored(options: RunOptions) -> "tuple[Experiment, Path]":
    """The run that a folder holds, perhaps with more rounds."""
    from winnow.core import RunError
    from winnow.experiment.run_folders import stored_experiment

    folder = Path(options.source)
    if not options.resume:
        raise RunError(
            f"{folder} is a folder; add --resume to continue the run in it, or name a preset or a .toml file"
        )
    changes = {
        "--set": options.sets,
        "--plugin": options.plugins,
        "--algorithm": options.algorithm,
        "--seed": options.seed,
        "--out": options.out,
    }
    for option, value in changes.items():
        if value not in (None, ()):
            raise RunError(
                f"{folder} is resumed with its own settings; remove {option} (only --rounds may be increased)"
            )
    stored = stored_experiment(folder)
    return stored.model_copy(update={"rounds": options.rounds or stored.rounds}), folder


def _show_timing(timer: "RoundTimer") -> None:
    from winnow.cli.console import say, stderr_console
    from winnow.terminal_tables import table

    report = timer.close()
    if report is not None:
        rows, roofline = report.lines()
        stderr_console().print(table(("part", "ms per round", "share"), rows))
        say(roofline)


def _show_result(folder: Path, *, as_json: bool) -> None:
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
