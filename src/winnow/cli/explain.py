"""winnow explain RUN|PRESET_OR_FILE"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from winnow.cli.options import AlgorithmName, AsJson, Plugins, Sets, complete_source

if TYPE_CHECKING:
    from rich.console import RenderableType

    from winnow.config.schema import Experiment
    from winnow.explain.privacy_report import PrivacyReport
    from winnow.runs import PrivacyBudget


def explain(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_PRESET_OR_FILE",
            help="A run folder, a preset or a .toml file.",
            autocompletion=complete_source,
        ),
    ],
    algorithm: AlgorithmName = None,
    sets: Sets = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Explain who learns what in a run or by a question, under which assumptions and at what cost.

    It warns about settings that undo each other's privacy.
    """
    from msgspec import to_builtins

    from winnow.cli.console import stdout_console, write_json
    from winnow.cli.explain_question import answered_question, show_explanation
    from winnow.terminal_tables import plain_text

    question = answered_question(Path(source))
    if question is not None:
        show_explanation(*question, as_json=as_json)
        return
    if (lines := _stated(Path(source))) is not None:
        if as_json:
            write_json(lines)
        else:
            for line in lines:
                stdout_console().print(plain_text(line))
        return
    from winnow.explain.privacy_report import make_privacy_report
    from winnow.runs import read_privacy_budgets

    experiment, spent = _read(source, algorithm, sets or [], plugins or [])
    explanation = make_privacy_report(experiment, spent)
    if as_json:
        write_json(to_builtins(explanation))
    else:
        stdout_console().print(_shown(explanation, read_privacy_budgets(experiment.model_dump())))


def _stated(run: Path) -> list[str] | None:
    """Who learns what in a run of split or transfer learning, which has kept it."""
    from winnow.explain.report_with_privacy import stated_lines
    from winnow.runs import RunFolder, file_names

    return stated_lines(RunFolder.open(run).config_text) if (run / file_names.LABEL).is_file() else None


def _read(
    source: str, algorithm: str | None, sets: list[str], plugins: list[Path]
) -> tuple["Experiment", Mapping[str, float]]:
    """The settings, and what privacy the run has cost if it is one."""
    from winnow.config.resolve import resolve
    from winnow.core import ConfigError
    from winnow.experiment.run_folders import stored_experiment
    from winnow.runs import RunFolder

    path = Path(source)
    if not path.is_dir():
        return resolve(source, sets=sets, algorithm=algorithm, plugins=plugins), {}
    if algorithm or sets:
        raise ConfigError(f"{path} is a run folder, whose settings are fixed; remove --algorithm and --set")
    view = RunFolder.open(path)
    return stored_experiment(path), view.summary().privacy_spent


def _shown(explanation: "PrivacyReport", privacy_budgets: Mapping[str, "PrivacyBudget"]) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    from winnow.runs.summary import privacy_spent_lines

    lines: list[RenderableType] = [Text(f"{explanation.name} · {explanation.algorithm}", style="bold")]
    lines += [Text("\nWho learns what", style="bold")]
    for party in explanation.parties:
        lines += [Text(f"  {party.name}"), *map(_point, party.learns)]
    for title, points in (
        ("What each part does", explanation.parts),
        ("Spent so far", privacy_spent_lines(explanation.spent, privacy_budgets)),
        ("Budgets", explanation.forecast),
        ("Warnings", explanation.warnings),
    ):
        lines += [Text(f"\n{title}", style="bold"), *map(_point, points)] if points else []
    return Group(*lines)


def _point(text: str) -> "RenderableType":
    """A list's point, whose further lines are indented."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    grid.add_row("   ·", Text(text))
    return grid
