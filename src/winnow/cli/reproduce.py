"""winnow reproduce"""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from winnow.cli.interrupts import exit_on_interrupt, shell_argument
from winnow.cli.options import DataFolder, Quiet, Sets, Workers
from winnow.cli.parallel_runs import available_cores, run_many

if TYPE_CHECKING:
    from winnow.config.schema import Experiment
    from winnow.papers import Paper, PaperRun, ReproductionOptions, ReproductionPlan
    from winnow.papers.result_json_lines import ResultLine, ResultLines

RESULTS, PAGE, TEXT, OPTIONS = "results.jsonl", "index.html", "index.md", "reproduce.json"

PaperName: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="PAPER",
        help="fedprof, srpfl (personal models), secagg (compression under secure aggregation), fedaq (accelerated and"
        " quantised), truth (truth discovery), few-labels (unlabelled clients), flare (NVIDIA FLARE), fedclip"
        " (frozen encoders), ensemble (leaves), or phones (speech and text).",
    ),
]
Items: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="WHAT…",
        help="Tables and figures such as table1 (fedprof) or fig2-mnist (secagg); default: all that can run here.",
    ),
]
RoundsOrEpochs: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="Rounds and epochs, instead of the paper's.", min=1)
]
OutputFolder: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The folder for runs, results and page; default: runs/PAPER.")
]
ImportedResults: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--from", metavar="FILE", help="Results computed elsewhere; may be repeated.", exists=True, dir_okay=False
    ),
]


def reproduce(
    paper: PaperName,
    what: Items = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="How many seeds.", min=1)] = 5,
    rounds: RoundsOrEpochs = None,
    sets: Sets = None,
    data: DataFolder = None,
    out: OutputFolder = None,
    workers: Workers = None,
    imported: ImportedResults = None,
    run: Annotated[
        bool, typer.Option("--run/--no-run", help="Compute missing results, or only show existing ones.")
    ] = True,
    quiet: Quiet = False,
) -> None:
    """Reproduce a paper's tables and figures on one page, beside the published values.

    Repeat the same command to continue after a stop: finished results are kept.
    """
    from winnow.experiment.run_folders import RUNS_FOLDER
    from winnow.papers import ReproductionOptions

    chosen, names = _paper(paper), tuple(what or ())
    chosen.select_items(names)
    processes = workers or available_cores()
    wanted = ReproductionOptions(
        seeds=seeds, rounds=rounds, sets=tuple(sets or ()), data_directory=data, workers=processes
    )
    folder = _folder(out or RUNS_FOLDER / chosen.name, wanted if run else None)
    results = _Results(folder / RESULTS, imported or ())
    failed = 0
    if run:
        with exit_on_interrupt(
            lambda: f"winnow: stopped; continue with the same command and --out {shell_argument(folder)}"
        ):
            failed = _compute(chosen, names, wanted, results, folder, quiet=quiet)
    _show(chosen, names, results.lines, folder, computed=run)
    if failed:
        raise typer.Exit(1)


class _Results:
    """The lines of the folder and those computed elsewhere; what is new is written at once."""

    def __init__(self, path: Path, imported: "Iterable[Path]") -> None:
        from winnow.papers.result_json_lines import lines_by_key, read_lines

        earlier = [path] if path.exists() else []
        self._path = path
        self.lines = lines_by_key(line for file in (*earlier, *imported) for line in read_lines(file))
        self.keep(())

    def keep(self, new: "Iterable[ResultLine]") -> None:
        from winnow.papers.result_json_lines import lines_by_key, write_lines

        self.lines.update(lines_by_key(new))
        write_lines(self._path, self.lines)


def _compute(
    paper: "Paper",
    names: tuple[str, ...],
    wanted: "ReproductionOptions",
    results: _Results,
    folder: Path,
    *,
    quiet: bool,
) -> int:
    """Compute what is missing, and say how many runs failed."""
    from winnow.cli.console import say
    from winnow.papers import plan_reproduction

    work = _plan(paper, names, wanted, results.lines)
    failed, runs, tried = 0, work.runs, set[tuple[str, ...]]()
    while runs:
        failed += _runs(runs, folder, wanted, results.keep, quiet=quiet)
        tried |= {run.key for run in runs}
        later = plan_reproduction(paper, names, wanted, results.lines).runs  # whose settings were chosen by these
        runs = tuple(run for run in later if run.key not in tried)
    for item in work.measurements:
        if not quiet:
            say(f"{item.name}: measuring")
        for line in item.measure(wanted, dict(results.lines)):
            results.keep([line])
    return failed


def _show(paper: "Paper", names: tuple[str, ...], lines: "ResultLines", folder: Path, *, computed: bool) -> None:
    from winnow.papers.results_page import write_html_page, write_markdown_page

    write_markdown_page(folder / TEXT, paper, lines, names)
    page = write_html_page(folder / PAGE, paper, lines, names)
    typer.echo(f"Results: {folder / RESULTS}\nPage: {page}")
    if not lines:
        advice = "nothing could be computed here; add --from FILE" if computed else "remove --no-run or add --from FILE"
        typer.echo(f"There are no results yet; {advice}")


def _paper(name: str) -> "Paper":
    from winnow.core import ConfigError, suggest
    from winnow.papers import PAPERS

    if name not in PAPERS:
        raise ConfigError(f"unknown paper {name!r}; {suggest(name, PAPERS)}")
    return PAPERS[name]


def _folder(folder: Path, wanted: "ReproductionOptions | None") -> Path:
    """The folder, if it is new or holds results that were computed with the same options; nothing wanted, any."""
    from winnow.core import RunError
    from winnow.runs.atomic_write import one_line_errors, write_text_atomically

    with one_line_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if wanted is None:
            return folder
        text = json.dumps({"rounds": wanted.rounds, "set": wanted.sets}) + "\n"
        if (folder / OPTIONS).exists() and (folder / OPTIONS).read_text("utf-8") != text:
            raise RunError(
                f"{folder} holds results computed with a different --rounds or --set; "
                "use the same options or choose another --out"
            )
        write_text_atomically(folder / OPTIONS, text)
    return folder


def _plan(
    paper: "Paper", what: tuple[str, ...], wanted: "ReproductionOptions", lines: "ResultLines"
) -> "ReproductionPlan":
    from winnow.cli.console import say
    from winnow.papers import plan_reproduction

    work = plan_reproduction(paper, what, wanted, lines)
    for line in work.left_out:
        say(f"winnow: {line}")
    return work


def _sharing_features(experiment: "Experiment", folder: Path) -> "Experiment":
    """The experiment with one place for the features of a frozen encoder: runs differ in seeds, not in samples."""
    from winnow.runs.file_names import FEATURES

    encode = experiment.encode
    if encode is None or encode.cache is not None:
        return experiment
    shared = encode.model_copy(update={"cache": folder.absolute() / FEATURES})
    return experiment.model_copy(update={"encode": shared})


def _runs(
    runs: "Sequence[PaperRun]",
    folder: Path,
    wanted: "ReproductionOptions",
    keep: "Callable[[Iterable[ResultLine]], None]",
    *,
    quiet: bool,
) -> int:
    """Make the federated runs, keep the line of each as soon as it is done, and say how many failed."""
    from winnow.experiment.run_pool import RunSpec

    specs = [
        RunSpec(
            experiment=_sharing_features(run.experiment, folder),
            out=run.folder(folder),
            resume=True,
            data_directory=wanted.data_directory,
        )
        for run in runs
    ]

    def finished(index: int) -> None:
        keep([runs[index].line(folder, wanted)])

    failed = run_many(specs, wanted.workers, quiet=quiet, skip_incompatible=True, on_finished=finished)
    return sum(not how.incompatible for how in failed.values())
