"""winnow truth ANSWERS"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from winnow.cli.ask_owners import ExplainOption
from winnow.cli.options import AsJson

if TYPE_CHECKING:
    from winnow.analytics.truth.truth_report import TruthReport

SHOWN = 20
"""Rows of a table in the terminal."""


def truth(
    answers: Annotated[
        Path, typer.Argument(metavar="ANSWERS.csv", help="A row for each answer of a worker.", show_default=False)
    ],
    item: Annotated[str, typer.Option(metavar="COLUMN", help="The column with the item.")] = "item",
    worker: Annotated[str, typer.Option(metavar="COLUMN", help="The column with the worker.")] = "worker",
    label: Annotated[str, typer.Option(metavar="COLUMN", help="The column with the answer.")] = "label",
    method: Annotated[
        str, typer.Option(metavar="METHOD", help="logistic, sum, dawid-skene; crh for numbers.")
    ] = "logistic",
    labels: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="The labels that are allowed; default: those that occur.", show_default=False),
    ] = None,
    iterations: Annotated[int, typer.Option(metavar="N", help="Iterations.", min=1)] = 10,
    private: Annotated[
        bool, typer.Option("--private", help="By secret shares between simulated participants; only sums are opened.")
    ] = False,
    holders: Annotated[
        int | None,
        typer.Option(metavar="N", help="A committee of N holds the shares; default: everybody.", show_default=False),
    ] = None,
    threshold: Annotated[
        int | None,
        typer.Option(metavar="T", help="So many holders open a sum; default: more than half.", show_default=False),
    ] = None,
    dropouts: Annotated[
        str, typer.Option(metavar="RULE", help="Of who leaves: kept (the last vector stays in the sums) or adaptive.")
    ] = "kept",
    dropout: Annotated[
        float, typer.Option(metavar="P", help="The chance that a participant leaves in an iteration.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Who holds shares and who leaves follow from it.")] = 0,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write items.csv and participants.csv.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page with plots.", show_default=False)
    ] = None,
    explain: ExplainOption = False,
    as_json: AsJson = False,
) -> None:
    """Find what is true of items that workers answered differently, and how far each worker can be trusted."""
    from winnow.analytics.truth.find_truth import explain_truth_of, find_truth
    from winnow.cli.ask_owners import names
    from winnow.cli.console import say, write_json

    allowed = names(labels)
    if explain:
        told = explain_truth_of(
            answers,
            item=item,
            worker=worker,
            label=label,
            method=method,
            labels=allowed,
            private=private,
            holders=holders,
            threshold=threshold,
            dropouts=dropouts,
        )
        write_json(told) if as_json else _print_explanation(told)
        return
    report = find_truth(
        answers,
        item=item,
        worker=worker,
        label=label,
        method=method,
        labels=allowed,
        iterations=iterations,
        private=private,
        holders=holders,
        threshold=threshold,
        dropouts=dropouts,
        dropout=dropout,
        seed=seed,
    )
    if csv is not None:
        say(f"Tables: {report.write_csv(csv)}")
    if out is not None:
        say(f"Report: {report.write(out)}")
    write_json(report.answer) if as_json else _print(report)


def _print(report: "TruthReport") -> None:
    from winnow.analytics.truth.truth_page import item_cells, participant_cells, truth_notes
    from winnow.cli.console import stdout_console
    from winnow.terminal_tables import plain_text, table

    console = stdout_console()
    for what, (header, rows) in (("items", item_cells(report)), ("participants", participant_cells(report))):
        console.print(table(header, rows[:SHOWN], numbers=("confidence", "trust")))
        if (more := len(report.answer[what]) - SHOWN) > 0:
            console.print(plain_text(f"… and {more:,} more {what} (--csv FOLDER, --json)\n"))
    for line in truth_notes(report):
        console.print(plain_text(line))


def _print_explanation(told: dict[str, list[str]]) -> None:
    from winnow.cli.console import stdout_console
    from winnow.terminal_tables import plain_text

    console = stdout_console()
    for who, lines in told.items():
        if lines:
            console.print(plain_text(who))
        for line in lines:
            console.print(plain_text(f"  · {line}"))
