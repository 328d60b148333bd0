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
    from winnow.cli.console import answers, write_json
    from winnow.cli.results import run_lines, run_record, run_tables
    from winnow.runs import RunFolder

    view = RunFolder.open(run)
    if as_json:
        write_json(run_record(view))
    else:
        answers().print(run_lines(view), run_tables(view))
