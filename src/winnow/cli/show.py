"""winnow show RUN"""

from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.options import AsJson


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Show the result of a run, finished or not."""
    from winnow.cli.console import stdout_console, write_json
    from winnow.cli.render_results import run_record, run_summary, run_tables
    from winnow.runs import RunFolder

    view = RunFolder.open(run)
    if as_json:
        write_json(run_record(view))
    else:
        stdout_console().print(run_summary(view), run_tables(view))
