"""winnow compare"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from winnow.cli.interrupts import NOTHING_DONE, as_argument, interruptible
from winnow.cli.jobs import cores, failure, left_out, make_runs
from winnow.cli.options import AsJson, DataFolder, Plugins, Quiet, Rounds, Sets, Source, complete_algorithms

if TYPE_CHECKING:
    from winnow.experiment.compare import Comparison
    from winnow.experiment.schema import Experiment
    from winnow.experiment.workers import Job

USUAL = "fedprof,fedavg-rp"


def compare(
    source: Source,
    algorithms: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="Which algorithms.", autocompletion=complete_algorithms, show_default=USUAL),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every known algorithm; those that cannot run here are named and left out.")
    ] = False,
    seeds: Annotated[str, typer.Option(metavar="N | A,B,…", help="How many seeds (0, 1, …), or which.")] = "3",
    rounds: Rounds = None,
    sets: Sets = None,
    plugins: Plugins = None,
    data: DataFolder = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of all runs; else runs/compare-NAME.", show_default=False),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep finished runs, continue the others, begin what is missing.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(metavar="N", help="How many runs at a time; else one a core.", min=1, show_default=False),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare algorithms over seeds: best metric, and the rounds, time and energy to the target.

    With --json it prints one record a run, each on a line of its own.
    """
    with interruptible(lambda: NOTHING_DONE):
        given = {"sets": tuple(sets or ()), "plugins": tuple(plugins or ()), "rounds": rounds}
        experiments = _plan(source, _names(algorithms, every=every), seeds, given)
        _make_present(experiments[0], data)
    folder = _folder(experiments[0].name, out, resume=resume)
    with interruptible(lambda: _how_to_resume(folder)):
        comparison = _run(_jobs(experiments, folder, resume, data), jobs or cores(), quiet=quiet, tolerant=every)
    _answer(comparison.ranked() if every else comparison, folder, as_json=as_json)
    if comparison.failures:
        raise typer.Exit(1)


def _names(algorithms: str | None, *, every: bool) -> str | None:
    """Those to compare, with commas between them; None for every known one."""
    from winnow.core import ConfigError

    if every and algorithms is not None:
        raise ConfigError(f"--all compares every known algorithm; leave out --algorithms {algorithms}, or --all")
    return None if every else algorithms or USUAL


def _plan(source: str, algorithms: str | None, seeds: str, given: dict[str, Any]) -> "list[Experiment]":
    """All runs, checked; without names, of every algorithm that the source admits."""
    from winnow.cli.console import say
    from winnow.experiment.compare import grid, grid_of_all

    if algorithms is not None:
        return grid(source, algorithms=algorithms, seeds=_seeds(seeds), **given)
    experiments, refused = grid_of_all(source, seeds=_seeds(seeds), **given)
    for name, reason in refused.items():
        say(left_out(name, reason))
    return experiments


def _make_present(experiment: "Experiment", data: Path | None) -> None:
    from winnow.cli.downloads import make_present

    make_present(experiment.data, data)


def _jobs(experiments: "list[Experiment]", folder: Path, resume: bool, data: Path | None) -> "list[Job]":
    from winnow.experiment.compare import folder_of
    from winnow.experiment.workers import Job

    return [Job(experiment=e, out=folder_of(e, folder), resume=resume, data_directory=data) for e in experiments]


def _answer(comparison: "Comparison", folder: Path, *, as_json: bool) -> None:
    from winnow.cli.console import answers, write_json
    from winnow.experiment.compare import WIDE
    from winnow.runs import names

    if comparison.runs:
        comparison.save(folder / names.COMPARISON)
        report = comparison.report(folder / names.REPORT)
    if as_json:
        for record in comparison.records:
            write_json(asdict(record))
    elif comparison.runs:
        console = answers()
        console.print(comparison.rendered(wide=console.width >= WIDE))
        console.print(f"Runs and table: {folder}\nReport: {report}", soft_wrap=True, markup=False)


def _run(work: "list[Job]", workers: int, *, quiet: bool, tolerant: bool) -> "Comparison":
    from winnow.experiment.compare import Comparison
    from winnow.runs import RunFolder

    failed = make_runs(work, workers, quiet=quiet, tolerant=tolerant)
    finished = (job.out for index, job in enumerate(work) if index not in failed)
    return Comparison(
        runs=tuple(map(RunFolder.open, finished)),
        failures=tuple(failure(work[k], how.reason) for k, how in failed.items() if not (tolerant and how.refused)),
    )


def _folder(name: str, out: Path | None, *, resume: bool) -> Path:
    from winnow.core import RunError
    from winnow.experiment.folders import RUNS, fresh, latest, safe
    from winnow.runs.files import one_line_errors

    default = RUNS / f"compare-{safe(name)}"
    folder = out or (latest(default) if resume else fresh(default))
    with one_line_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not resume and any(folder.iterdir()):
            raise RunError(f"{folder} is not empty; continue what is in it with --resume or choose another --out")
    return folder


def _how_to_resume(folder: Path) -> str:
    return f"winnow: stopped; continue with the same command and --out {as_argument(folder)} --resume"


def _seeds(text: str) -> int | list[int]:
    """`5` counts, `3,7,11` (or `7,`) lists."""
    from winnow.core import ConfigError
    from winnow.experiment.compare import words

    numbers = words(text)
    if not numbers or not all(number.isdecimal() for number in numbers):
        raise ConfigError(f"--seeds {text}: write a count such as 5, or a list such as 3,7,11")
    return [int(number) for number in numbers] if "," in text else int(text)
