"""winnow report RUN…"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from winnow.cli.options import AsJson

if TYPE_CHECKING:
    from winnow.runs import RunView


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders, or folders with runs.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The output file; default: report.html in the folder, or in the current one for several folders.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a report on one or more runs: a single file that opens offline.

    With --json it prints a record for each run, each on a line of its own.
    """
    from winnow.cli.console import write_json
    from winnow.cli.render_results import all_trained, open_runs, run_record
    from winnow.explain.report_with_privacy import write_reports
    from winnow.runs import file_names
    from winnow.runs.output_file import check_output

    check_output(out, ".html", option="--out")
    views = [view for folder in runs for view in open_runs(folder)]
    folder = runs[0] if len(runs) == 1 else Path()
    place = out or folder / file_names.REPORT
    page = write_reports(place, views) if all_trained(views) else _answer_page(views, place)
    if not as_json:
        typer.echo(page)
        return
    for view in views:
        write_json(run_record(view, page))


def _answer_page(views: "list[RunView]", place: Path) -> Path:
    """The page of a question's answer."""
    from winnow.analytics.answers import write_answer_page
    from winnow.analytics.question_run_folder import stored_answer
    from winnow.core import RunError

    if len(views) > 1:
        raise RunError("answers to questions have a page each; name one run at a time")
    path = views[0].path
    assert path is not None
    if views[0].result is None:
        raise RunError(f"{path} is not finished; repeat the command that asked, with the same --folder")
    return write_answer_page(stored_answer(path), place)
