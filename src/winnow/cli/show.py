"""winnow show RUN"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from winnow.cli.options import AsJson

if TYPE_CHECKING:
    from winnow.runs import RunView


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a folder with runs, to compare them.")],
    as_json: AsJson = False,
) -> None:
    """Show the result of a run, finished or not; of a folder with several runs, the table that compares them.

    With --json it prints a record for each run, each on a line of its own.
    """
    from winnow.cli.console import stdout_console, write_json
    from winnow.cli.render_results import answer_summary, open_runs, run_record, run_summary, run_tables
    from winnow.experiment.run_folders import holds_run
    from winnow.runs.run_identity_record import TRAINING

    views = open_runs(run)
    if as_json:
        for view in views:
            write_json(run_record(view))
    elif holds_run(run) and views[0].label.kind != TRAINING:
        stdout_console().print(answer_summary(views[0]))
    elif holds_run(run):
        stdout_console().print(run_summary(views[0]), run_tables(views[0]))
    else:
        _show_comparisons(views)


def _show_comparisons(views: "list[RunView]") -> None:
    """One table for each experiment and metric."""
    from winnow.cli.console import stdout_console
    from winnow.core.untrusted_text import printable
    from winnow.experiment.comparison import WIDE_TERMINAL_COLUMNS, rendered_comparison
    from winnow.report import comparison_of

    experiments: dict[tuple[str, str], list[RunView]] = {}
    for view in views:
        experiments.setdefault((view.label.name, view.label.metric), []).append(view)
    console = stdout_console()
    for (name, _), runs in experiments.items():
        seeds = sorted({view.label.seed for view in runs})
        title = f"{printable(name)} · seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        console.print(title, style="bold", markup=False)
        console.print(rendered_comparison(*comparison_of(runs), wide=console.width >= WIDE_TERMINAL_COLUMNS))
    unfinished = [str(view.path) for view in views if view.result is None]
    if unfinished:
        console.print(f"Not finished: {', '.join(unfinished)}", soft_wrap=True, markup=False)
