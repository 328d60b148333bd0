"""winnow clients RUN"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from winnow.cli.options import AsJson

if TYPE_CHECKING:
    from rich.console import RenderableType

    from winnow.runs import RunView
    from winnow.runs.client_table import ClientRow, ClientTable


def clients(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, finished or not.")],
    show_all: Annotated[bool, typer.Option("--all", help="Show every client, however many there are.")] = False,
    find: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only clients with this in their name or evidence.")
    ] = None,
    verdict: Annotated[
        str | None,
        typer.Option(
            metavar="VERDICT",
            help="Only clients with this verdict: harmful, suspect, different, 'cannot tell' or fine.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Write the table to a file for spreadsheets.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show every client by name: how often it was invited, whether its data look bad, and why. The worst come first.

    A score of 1 is the alarm threshold; 0 is expected of an honest client.
    """
    from winnow.cli.console import say, stdout_console, write_json
    from winnow.core.join_names import counted
    from winnow.runs.client_table import read_client_table

    if out is not None:
        _check_csv(out)
    view = _the_run(run)
    table = read_client_table(view)
    rows = _chosen(table.rows, find, verdict)
    if out is not None:
        from winnow.report.client_cells import write_client_csv

        write_client_csv(out, rows)
        say(f"{counted(len(rows), 'client')}: {out}")
    elif as_json:
        write_json([row.record() for row in rows])
    elif not rows:
        say("no client fits")
    else:
        stdout_console().print(_rendered(rows, everything=show_all))
        for line in _notes(view, table):
            stdout_console().print(line, soft_wrap=True, markup=False)


def _check_csv(out: Path) -> None:
    from winnow.core import RunError
    from winnow.runs.client_table import COLUMNS
    from winnow.runs.output_file import check_writable, csv_columns, keep_other_table

    if out.suffix.lower() != ".csv":
        raise RunError(
            f"--out {out}: the table is written as .csv, which spreadsheets open; name the file {out.stem}.csv"
        )
    check_writable(out, option="--out")
    keep_other_table(out, csv_columns, COLUMNS, "--out")


def _the_run(folder: Path) -> "RunView":
    """The run of a folder; a folder with several is no answer to whose clients are meant."""
    from winnow.cli.render_results import open_runs
    from winnow.core import RunError
    from winnow.core.join_names import listed

    found = open_runs(folder)
    if len(found) == 1:
        return found[0]
    names = listed([str(view.path.relative_to(folder)) for view in found if view.path is not None])
    raise RunError(f"{folder} holds {len(found)} runs ({names}); name one of them: winnow clients {found[0].path}")


def _chosen(rows: "Sequence[ClientRow]", find: str | None, verdict: str | None) -> "Sequence[ClientRow]":
    from winnow.core import RunError, suggest
    from winnow.core.events import VERDICTS

    if verdict is not None and verdict not in VERDICTS:
        raise RunError(f"--verdict {verdict}: there is no such verdict; {suggest(verdict, VERDICTS)}")
    text = (find or "").casefold()
    return [
        row
        for row in rows
        if text in f"{row.name}\n{row.evidence}".casefold() and (verdict is None or row.verdict == verdict)
    ]


def _rendered(rows: "Sequence[ClientRow]", *, everything: bool) -> "RenderableType":
    from winnow.report.client_cells import client_row_cells
    from winnow.runs.client_table import BEST_SHOWN, COLUMNS, SHOWN_UP_TO, WORST_SHOWN
    from winnow.terminal_tables import table

    left = 0 if everything or len(rows) <= SHOWN_UP_TO else len(rows) - WORST_SHOWN - BEST_SHOWN
    cells = [client_row_cells(row) for row in (rows if not left else [*rows[:WORST_SHOWN], *rows[-BEST_SHOWN:]])]
    if left:
        cells.insert(WORST_SHOWN, (f"… {left:,} more", *[""] * (len(COLUMNS) - 1)))
    return table(COLUMNS, cells, numbers=("samples", "invited", "score"))


def _notes(view: "RunView", table: "ClientTable") -> "Sequence[str]":
    """What the table does not say: what it comes to, what the run did about it, how to see the rest."""
    from winnow.explain.unassessed_clients import why_not_assessed
    from winnow.report.client_cells import policy_lines
    from winnow.runs.client_table import SHOWN_UP_TO

    if not table.assessments:
        return [f"clients were not assessed: {why_not_assessed(view.config_text)}"]
    notes = [f"{table.headline()}; {table.when_assessed}", *policy_lines(table)]
    if len(table.rows) > SHOWN_UP_TO:
        notes.append("--all shows every client; --find TEXT or --verdict suspect shows some")
    return notes
