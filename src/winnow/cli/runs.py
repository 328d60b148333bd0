"""winnow runs [DIR]"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from winnow.cli.options import AsJson

if TYPE_CHECKING:
    from winnow.runs import RunView


def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder with runs; default: runs.", show_default=False)
    ] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder, the latest last.

    With --json it prints a record for each run, each on a line of its own.
    """
    from winnow.cli.console import say, stdout_console, write_json
    from winnow.cli.render_results import run_record
    from winnow.core import RunError
    from winnow.experiment.run_folders import runs_below
    from winnow.runs import RunFolder
    from winnow.terminal_tables import table

    found: list[RunView] = []
    for path in runs_below(folder):
        try:
            found.append(RunFolder.open(path))
        except RunError as error:  # one that is damaged does not hide the others
            say(f"winnow: {error}")
    found.sort(key=_started)
    if as_json:
        for view in found:
            write_json(run_record(view))
        return
    if not found:
        typer.echo(f"there are no runs in {folder}")
        return
    heads = ("Run", "Algorithm", "Seed", "Rounds", "Best", "State", "Started (UTC)")
    stdout_console().print(table(heads, [_row(view, folder) for view in found], numbers=False))


def _row(view: "RunView", folder: Path) -> tuple[str, ...]:
    from winnow.cli.render_results import run_record, run_state

    assert view.path is not None
    record, label = run_record(view), view.label
    best = record["best"]
    return (
        str(view.path.relative_to(folder)),
        label.algorithm,
        str(label.seed),
        f"{record['rounds']}/{view.config.get('rounds', record['rounds'])}",
        f"{best['value']:.4f}" if best else "",
        run_state(view, record["stopped"]),
        _started(view)[:16].replace("T", " "),
    )


def _started(view: "RunView") -> str:
    """When the run was started, as its label says; runs of earlier versions are dated by the label's file."""
    from datetime import UTC, datetime

    from winnow.runs import file_names

    assert view.path is not None
    written = (view.path / file_names.LABEL).stat().st_mtime
    return view.label.started or datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds")
