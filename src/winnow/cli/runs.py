"""winnow runs [DIR]"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from winnow.cli.options import AsJson

if TYPE_CHECKING:
    from winnow.runs import RunView


def runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder with runs.")] = Path("runs"),
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

    found: list[tuple[str, dict[str, Any], tuple[str, ...]]] = []
    for path in runs_below(folder):
        try:
            view = RunFolder.open(path)
            record = run_record(view)
            found.append((_started(view), record, () if as_json else _row(view, record, folder)))
        except RunError as error:  # one that is damaged does not hide the others
            say(f"winnow: {error}")
    found.sort(key=lambda run: run[0])
    if as_json:
        for _, record, _ in found:
            write_json(record)
        return
    if not found:
        typer.echo(f"there are no runs in {folder}")
        return
    heads = ("Run", "Algorithm", "Seed", "Rounds", "Best", "State", "Started (UTC)")
    stdout_console().print(table(heads, [row for _, _, row in found], numbers=False))


def _row(view: "RunView", record: dict[str, Any], folder: Path) -> tuple[str, ...]:
    from winnow.cli.render_results import run_state
    from winnow.config.planned_rounds import planned_rounds

    assert view.path is not None
    label, best = view.label, record.get("best")
    return (
        str(view.path.relative_to(folder)),
        label.algorithm,
        str(label.seed),
        f"{record['rounds']}/{planned_rounds(view.config) or record['rounds']}",
        f"{best['value']:.4f}" if best and best["value"] is not None else "",
        run_state(view, record.get("stopped")),
        _started(view)[:16].replace("T", " "),
    )


def _started(view: "RunView") -> str:
    """When the run was started, as its label says; runs of earlier versions are dated by the label's file."""
    from datetime import UTC, datetime

    from winnow.runs import file_names

    assert view.path is not None
    written = (view.path / file_names.LABEL).stat().st_mtime
    return view.label.started or datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds")
