"""winnow compare"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    Targets,
    Workers,
    complete_algorithms,
)
from winnow.cli.parallel_runs import available_cores, failure_message, run_many, skipped_message

if TYPE_CHECKING:
    from winnow.config.schema import Experiment
    from winnow.experiment.comparison import Comparison
    from winnow.experiment.run_pool import RunSpec

DEFAULT_ALGORITHM_NAMES = "fedprof,fedavg-rp"


def compare(
    source: Source,
    algorithms: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            help="The algorithms to compare.",
            autocompletion=complete_algorithms,
            show_default=DEFAULT_ALGORITHM_NAMES,
        ),
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Compare every known algorithm; those that cannot run this experiment are listed and skipped."
        ),
    ] = False,
    seeds: Annotated[
        str, typer.Option(metavar="N | A,B,…", help="The number of seeds (0, 1, …), or a list of seeds.")
    ] = "3",
    rounds: Rounds = None,
    targets: Targets = None,
    sets: Sets = None,
    plugins: Plugins = None,
    data: DataFolder = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder for all runs; default: runs/compare-NAME.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep finished runs, continue unfinished ones and start missing ones.")
    ] = False,
    workers: Workers = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare algorithms over seeds: best metric, and the rounds, time and energy to the target.

    With --json it prints a record for each run, each on a line of its own.
    """
    from winnow.cli.download_progress import ensure_downloaded
    from winnow.cli.targets_option import with_targets

    with exit_on_interrupt(lambda: STOPPED_BEFORE_START):
        from winnow.experiment.comparison import open_comparison_folder
        from winnow.experiment.run_folders import claim_folder

        changes = with_targets(sets or (), targets, "compare", source)
        given = {"sets": changes, "plugins": tuple(plugins or ()), "rounds": rounds}
        experiments = _plan(source, _names(algorithms, every=every), seeds, given)
        ensure_downloaded(experiments[0].data, data)
    path = _path(experiments[0].name, out, resume=resume)
    with (
        claim_folder(path, given=resume or out is not None) as folder,
        exit_on_interrupt(lambda: _how_to_resume(folder)),
    ):
        open_comparison_folder(folder, resume=resume)
        specs = _run_specs(experiments, folder, resume, data)
        comparison = _run(specs, workers or available_cores(), quiet=quiet, skip_incompatible=every)
    _show(comparison.ranked() if every else comparison, folder, as_json=as_json)
    if comparison.failures:
        raise typer.Exit(1)


def _names(algorithms: str | None, *, every: bool) -> str | None:
    """Those to compare, with commas between them; None for every known one."""
    from winnow.core import ConfigError

    if every and algorithms is not None:
        raise ConfigError("--all and --algorithms cannot be combined; remove one of them")
    if every:
        return None
    return DEFAULT_ALGORITHM_NAMES if algorithms is None else algorithms


def _plan(source: str, algorithms: str | None, seeds: str, given: dict[str, Any]) -> "list[Experiment]":
    """All runs, checked; without names, of every algorithm that the source admits."""
    from winnow.cli.console import say
    from winnow.experiment.comparison import all_algorithms_grid, experiment_grid

    if algorithms is not None:
        return experiment_grid(source, algorithms=algorithms, seeds=_seeds(seeds), **given)
    experiments, refused = all_algorithms_grid(source, seeds=_seeds(seeds), **given)
    for name, reason in refused.items():
        say(skipped_message(name, reason))
    return experiments


def _run_specs(experiments: "list[Experiment]", folder: Path, resume: bool, data: Path | None) -> "list[RunSpec]":
    from winnow.experiment.comparison import run_folder_path
    from winnow.experiment.run_pool import RunSpec

    return [
        RunSpec(experiment=e, out=run_folder_path(e, folder), resume=resume, data_directory=data) for e in experiments
    ]


def _show(comparison: "Comparison", folder: Path, *, as_json: bool) -> None:
    from winnow.cli.console import stdout_console, write_json
    from winnow.cli.render_results import run_record
    from winnow.experiment.comparison import DIFFERENCES_TITLE, WIDE_TERMINAL_COLUMNS
    from winnow.runs import file_names

    if not comparison.runs:
        return
    comparison.write(folder)
    if as_json:
        for view in comparison.runs:
            write_json(run_record(view, folder / file_names.REPORT))
        return
    console = stdout_console()
    console.print(comparison.rendered(wide=console.width >= WIDE_TERMINAL_COLUMNS))
    differences = comparison.rendered_differences()
    if differences is not None:
        console.print(f"\n{DIFFERENCES_TITLE}", differences, sep="\n")
    report = f"\nReport: {folder / file_names.REPORT}" if (folder / file_names.REPORT).exists() else ""
    console.print(f"Runs and table: {folder}{report}", soft_wrap=True, markup=False)


def _run(specs: "list[RunSpec]", workers: int, *, quiet: bool, skip_incompatible: bool) -> "Comparison":
    from winnow.experiment.comparison import Comparison
    from winnow.runs import RunFolder

    failed = run_many(specs, workers, quiet=quiet, skip_incompatible=skip_incompatible)
    finished = (spec.out for index, spec in enumerate(specs) if index not in failed)
    return Comparison(
        runs=tuple(map(RunFolder.open, finished)),
        failures=tuple(
            failure_message(specs[k], how.reason)
            for k, how in failed.items()
            if not (skip_incompatible and how.incompatible)
        ),
    )


def _path(name: str, out: Path | None, *, resume: bool) -> Path:
    """Where the comparison goes; a new one without --out may get a number after the name."""
    from winnow.experiment.run_folders import RUNS_FOLDER, latest_path, safe_folder_name

    default = RUNS_FOLDER / f"compare-{safe_folder_name(name)}"
    return out or (latest_path(default) if resume else default)


def _how_to_resume(folder: Path) -> str:
    return f"winnow: stopped; continue with the same command and --out {shell_argument(folder)} --resume"


def _seeds(text: str) -> int | list[int]:
    """`5` counts, `3,7,11` (or `7,`) lists."""
    from winnow.core import ConfigError
    from winnow.experiment.comparison import split_commas

    numbers = split_commas(text)
    if not numbers or not all(number.isdecimal() for number in numbers):
        raise ConfigError(f"--seeds {text}: write a count such as 5, or a list such as 3,7,11")
    return [int(number) for number in numbers] if "," in text else int(text)
