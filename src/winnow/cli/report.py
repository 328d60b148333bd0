"""winnow report RUN…"""

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The output file; default: report.html in the run folder, or in the current folder for several runs.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a report on one or more runs: a single file that opens offline."""
    from winnow.explain.html_report import write_reports
    from winnow.runs import RunFolder, file_names

    folder = runs[0] if len(runs) == 1 else Path()
    typer.echo(write_reports(out or folder / file_names.REPORT, [RunFolder.open(run) for run in runs]))
