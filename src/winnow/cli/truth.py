"""winnow truth ANSWERS"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from winnow.cli.ask_owners import ExplainOption, FolderOption, OwnersOption, PersonKit
from winnow.cli.options import AsJson

if TYPE_CHECKING:
    from winnow.analytics.truth.truth_report import TruthReport

DEFAULTS = {"dropouts": "kept", "dropout": 0.0, "seed": 0}
"""Of options that are never absent."""


def truth(
    answers: Annotated[
        str,
        typer.Argument(
            metavar="ANSWERS.csv|TABLE",
            help="A file with a row for each answer of a worker; with --in or --kit, a table of several owners.",
        ),
    ],
    item: Annotated[str, typer.Option(metavar="COLUMN", help="The column with the item.")] = "item",
    worker: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="The column with the worker; default: worker. Of a table: without it each owner is one worker.",
        ),
    ] = None,
    label: Annotated[str, typer.Option(metavar="COLUMN", help="The column with the answer.")] = "label",
    method: Annotated[
        str, typer.Option(metavar="METHOD", help="logistic, sum, dawid-skene; crh for numbers.")
    ] = "logistic",
    labels: Annotated[
        str | None, typer.Option(metavar="A,B", help="The labels that are allowed; default: those that occur.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(metavar="N", help="Iterations; default: 10, or 20 of dawid-skene.", min=1)
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="By secret shares between simulated participants; only sums are opened.")
    ] = False,
    ranking: Annotated[
        bool, typer.Option("--ranking", help="Rank participants, or owners, by trust; how large it is stays hidden.")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Of a table: tell each owner's trust, which all must allow (per-owner).")
    ] = False,
    federation: Annotated[
        Path | None,
        typer.Option("--in", metavar="FILE", help="Of a table: the file that declares it and simulates its owners."),
    ] = None,
    kit: PersonKit = None,
    owners: OwnersOption = None,
    folder: FolderOption = None,
    holders: Annotated[
        int | None, typer.Option(metavar="N", help="A committee of N holds the shares; default: everybody.")
    ] = None,
    threshold: Annotated[
        int | None, typer.Option(metavar="T", help="So many holders open a sum; default: more than half.")
    ] = None,
    dropouts: Annotated[
        str, typer.Option(metavar="RULE", help="Of who leaves: kept (the last vector stays in the sums) or adaptive.")
    ] = "kept",
    dropout: Annotated[
        float, typer.Option(metavar="P", help="The chance that a participant leaves in an iteration.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Who holds shares and who leaves follow from it.")] = 0,
    csv: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write items.csv and participants.csv.")] = None,
    weights: Annotated[
        bool, typer.Option("--weights", help="Print trust as aggregate = {…} of a training, and nothing else.")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a page with plots.")] = None,
    explain: ExplainOption = False,
    as_json: AsJson = False,
) -> None:
    """Find what is true of items that workers answered differently, and how far each worker can be trusted."""
    from winnow.analytics.answers import answer_errors
    from winnow.cli.ask_owners import names
    from winnow.core import ConfigError
    from winnow.runs.output_file import check_output

    check_output(out, ".html", option="--out")
    if labels is not None and not names(labels):
        raise ConfigError("--labels: name two or more, each once")
    _refuse({"json": weights and as_json}, "everything that was found, and --weights for trust alone")
    asked: dict[str, Any] = {"item": item, "label": label, "method": method, "ranking": ranking}
    simulated: dict[str, Any] = {
        "labels": names(labels),
        "private": private,
        "holders": holders,
        "threshold": threshold,
        "dropouts": dropouts,
    }
    drawn: dict[str, Any] = {"dropout": dropout, "seed": seed}
    if federation is not None or kit is not None:
        _refuse(simulated | drawn, "simulated participants of a file")
        asked |= {"kind": "truth", "table": answers, "worker": worker, "iterations": iterations, "trust": trust}
        question = {name: value for name, value in asked.items() if value is not None}
        if explain:
            from winnow.analytics.question import read_question
            from winnow.cli.explain_question import explain_asked

            explain_asked(read_question(question), federation=federation, kit=kit, owners=owners, as_json=as_json)
            return
        with answer_errors():
            report = _ask_owners(question, federation, kit, owners, folder)
            _show(report, csv, out, as_json=as_json, weights=weights)
        return
    _refuse({"trust": trust, "owners": owners, "folder": folder}, "a table of several owners (--in, --kit)")
    if not Path(answers).suffix and not Path(answers).exists():
        raise ConfigError(f"there is no file {answers}; a table of several owners needs --in FILE or --kit KIT")
    from winnow.analytics.truth.find_truth import explain_truth_of, find_truth
    from winnow.cli.console import write_json

    asked |= {"worker": "worker" if worker is None else worker, **simulated}
    if explain:
        told = explain_truth_of(answers, **asked)
        write_json(told) if as_json else _print_explanation(told)
        return
    _show(find_truth(answers, **asked, **drawn, iterations=iterations), csv, out, as_json=as_json, weights=weights)


def _refuse(options: dict[str, Any], where: str) -> None:
    """Options that have no meaning here are not passed over in silence."""
    from winnow.core import ConfigError

    for name, value in options.items():
        if value != DEFAULTS.get(name) and value is not False and value != ():
            raise ConfigError(f"--{name} is for {where}; leave it out")


def _ask_owners(
    given: dict[str, Any],
    federation: Path | None,
    kit: Path | None,
    owners: str | None,
    folder: Path | None,
) -> "TruthReport":
    """Put the question to the owners of a table."""
    from winnow.analytics.question import read_question
    from winnow.analytics.truth.truth_report import TruthReport
    from winnow.cli.ask_owners import ask

    return TruthReport(ask(read_question(given), federation=federation, kit=kit, owners=owners, folder=folder))


def _show(report: "TruthReport", csv: Path | None, out: Path | None, *, as_json: bool, weights: bool) -> None:
    import json

    from winnow.analytics.truth.truth_terminal import truth_text
    from winnow.cli.console import say, stdout_console, write_json
    from winnow.core.untrusted_text import one_line

    if csv is not None:
        say(f"Tables: {report.write_csv(csv)}")
    if out is not None:
        say(f"Report: {report.write(out)}")
    if weights:
        known = report.training_weights["trust"].items()
        shares = ", ".join(f"{json.dumps(one_line(name), ensure_ascii=False)} = {trust:.6g}" for name, trust in known)
        typer.echo(f'aggregate = {{ name = "trust", trust = {{ {shares} }} }}')
    elif as_json:
        write_json(report.answer)
    else:
        stdout_console().print(truth_text(report))


def _print_explanation(told: dict[str, list[str]]) -> None:
    from winnow.cli.console import stdout_console
    from winnow.terminal_tables import plain_text

    console = stdout_console()
    for who, lines in told.items():
        if lines:
            console.print(plain_text(who))
        for line in lines:
            console.print(plain_text(f"  · {line}"))
