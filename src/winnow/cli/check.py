"""winnow check MODEL DATA"""

from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.options import AsJson, Factory, ModelFolder


def check(
    model: ModelFolder,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Your own .csv, .parquet or .npz file, with labels.")],
    targets: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="The columns to predict, with commas between them; default: those of the federation.",
        ),
    ] = None,
    factory: Factory = None,
    as_json: AsJson = False,
) -> None:
    """Check your own data before you join: what a federation would say of them, and why. Nothing leaves this machine.

    The federation's run folder, or a job's download, holds a summary of its reference data to compare with. A score of
    1 is the alarm threshold; 0 is expected of an honest client.
    """
    from winnow.cli.console import answer, stdout_console, write_json
    from winnow.experiment.own_check import check_own_data
    from winnow.report.client_cells import client_score_text
    from winnow.terminal_tables import table

    named = tuple(targets.split(",")) if targets else ()
    found = check_own_data(model, data, named, factory=factory)
    if as_json:
        write_json(found.record())
        return
    columns = ("name", "samples", "score", "verdict", "evidence")
    line = (found.name, f"{found.samples:,}", client_score_text(found.score), found.verdict, found.evidence)
    stdout_console().print(table(columns, [line], numbers=("samples", "score")))
    for finding in found.findings:
        if finding.text != found.evidence:
            answer(f"also: {finding.text}")
