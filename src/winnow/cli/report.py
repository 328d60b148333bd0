"""winnow report RUN…"""

from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.options import AsJson


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Run folders, or folders with runs.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The output file; default: report.html in the folder, or in the current one for several folders.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a report on one or more runs: a single file that opens offline.

    With --json it prints a record for each run, each on a line of its own.
    """
    from winnow.cli.console import write_json
    from winnow.cli.render_results import open_runs, run_record
    from winnow.explain.report_with_privacy import write_reports
    from winnow.runs import file_names

    views = [view for folder in runs for view in open_runs(folder)]
    folder = runs[0] if len(runs) == 1 else Path()
    page = write_reports(out or folder / file_names.REPORT, views)
    if not as_json:
        typer.echo(page)
        return
    for view in views:
        write_json(run_record(view, page))
