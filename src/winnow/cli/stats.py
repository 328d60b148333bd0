"""winnow stats TABLE"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from winnow.cli.ask_owners import (
    DeltaOption,
    EpsilonOption,
    ExplainOption,
    FederationFile,
    FolderOption,
    OwnersOption,
    PersonKit,
)
from winnow.cli.options import AsJson

if TYPE_CHECKING:
    from winnow.analytics.stats.report import StatisticsReport


def stats(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table's name.")],
    federation: FederationFile = None,
    kit: PersonKit = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Only these columns.")] = None,
    by: Annotated[str | None, typer.Option(metavar="A,B", help="Also by the values of these columns.")] = None,
    histograms: Annotated[int | None, typer.Option(metavar="N", help="Histograms with N bins.", min=1)] = None,
    quantile_range: Annotated[
        bool, typer.Option("--quantile-range", help="Bins divide the 1 % to 99 % quantiles, not the bounds.")
    ] = False,
    quantiles: Annotated[str | None, typer.Option(metavar="Q,Q", help="Quantiles, such as 0.05,0.5,0.95.")] = None,
    correlation: Annotated[bool, typer.Option("--correlation", help="The correlation of each two columns.")] = False,
    tests: Annotated[
        list[str] | None,
        typer.Option(
            "--test",
            metavar="TEST",
            help="chi2:a,b; t:number,group; anova:number,group; survival:time,event[,group]. May be repeated.",
        ),
    ] = None,
    per_owner: Annotated[bool, typer.Option("--per-owner", help="Mean and sd of each owner, if all allow it.")] = False,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    owners: OwnersOption = None,
    folder: FolderOption = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a page with plots.")] = None,
    scale: Annotated[
        bool, typer.Option("--scale", help="Print means and deviations as a line for site.toml and server.toml.")
    ] = False,
    explain: ExplainOption = False,
    as_json: AsJson = False,
) -> None:
    """Statistics of a table whose rows several owners hold: only sums over all of them are opened.

    What fewer rows than the owners' minimum are behind stays hidden.
    """
    from winnow.analytics.answers import answer_errors, render_answer, write_answer_page
    from winnow.analytics.question import read_question
    from winnow.analytics.stats.report import StatisticsReport
    from winnow.cli.ask_owners import ask, names
    from winnow.cli.console import say, stdout_console, write_json
    from winnow.runs.output_file import check_output

    check_output(out, ".html", option="--out")
    given = {
        "kind": "statistics",
        "table": table,
        "columns": names(columns),
        "by": names(by),
        "histograms": histograms,
        "histogram_range": "quantiles" if quantile_range else "bounds",
        "quantiles": _levels(quantiles),
        "correlation": correlation,
        "tests": tuple(tests or ()),
        "per_owner": per_owner,
        "epsilon": epsilon,
        "delta": delta,
    }
    question = read_question(given)
    if explain:
        from winnow.cli.explain_question import explain_asked

        explain_asked(question, federation=federation, kit=kit, owners=owners, as_json=as_json)
        return
    answer = ask(question, federation=federation, kit=kit, owners=owners, folder=folder)
    report = StatisticsReport(answer)
    if out is not None:
        write_answer_page(answer, out)
    if as_json:
        write_json(answer)
    elif scale:
        with answer_errors():
            typer.echo(_scale_line(report))
    else:
        stdout_console().print(render_answer(answer))
    if out is not None:
        say(f"Report: {out}")


def _levels(text: str | None) -> tuple[float, ...]:
    from winnow.cli.ask_owners import names
    from winnow.core import ConfigError

    try:
        return tuple(float(level) for level in names(text))
    except ValueError:
        raise ConfigError(f"--quantiles {text}: write numbers between 0 and 1, such as 0.05,0.5,0.95") from None


def _scale_line(report: "StatisticsReport") -> str:
    """`scale` of the [data] section, after a line that names the columns in their order."""
    from winnow.core import DataError

    scale = report.scale
    if constant := [name for name, sd in scale["sd"].items() if sd <= 0]:
        raise DataError(f"column '{constant[0]}' does not vary; leave it out with --columns")
    if not scale["mean"]:
        raise DataError("no column of numbers can be told; declare bounds = [low, high] for some")
    lists = (f"{name} = [{', '.join(f'{value:.10g}' for value in scale[name].values())}]" for name in ("mean", "sd"))
    return f"# {', '.join(scale['mean'])}\nscale = {{ {', '.join(lists)} }}"
