"""A run's result as lines, tables and a record."""

import shlex
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from winnow.experiment.run_folders import holds_run, runs_below
from winnow.progress.live_display import format_duration, format_score
from winnow.report.model_quality import CLIENTS_SHOWN, PER_CLASS_HEADER, client_cells, per_class_table
from winnow.report.plot_data import read_plot_data
from winnow.report.tables import PARTICIPATION_HEADER, cost_cells, participation_table, traffic
from winnow.runs import MetricReading, RunFolder, RunView, Summary, file_names, result_record
from winnow.runs.client_table import LatestAssessments
from winnow.runs.run_identity_record import TRAINING
from winnow.runs.summary import EVALUATED_BY_TEXT, REFERENCE, TEST, abandoned_text, privacy_spent_rows
from winnow.terminal_tables import plain_text, table

FINISHED_ONLY_KEYS = ("parameters", "private", "message_bytes", "wall_seconds")


def open_runs(folder: Path) -> list[RunView]:
    """The run in a folder, or the runs in its folders."""
    found = [] if holds_run(folder) or not folder.is_dir() else runs_below(folder)
    return [RunFolder.open(path) for path in found or [folder]]  # which says what a folder without runs lacks


def all_trained(views: list[RunView]) -> bool:
    return all(view.label.kind == TRAINING for view in views)


def run_record(view: RunView, report: Path | None = None) -> dict[str, Any]:
    """What --json prints of a run: the content of result.json; of one that is not finished, as far as it has come.

    `report` is the page that covers it, if not the one in its folder.
    """
    record = view.result or {
        **result_record(view.summary(), view.label, parameters=0, message_bytes=0, wall_seconds=0.0),
        **dict.fromkeys(FINISHED_ONLY_KEYS),
    }
    assert view.path is not None
    page = report or view.path / file_names.REPORT
    place = {"path": str(view.path), "report": str(page) if page.exists() else None}
    return {**place, "finished": view.result is not None, **record}


def run_summary(view: RunView) -> RenderableType:
    """The result in a few lines."""
    label, summary = view.label, view.summary()
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="bold")
    for name, text in _facts(view, summary):
        lines.add_row(plain_text(name), plain_text(text))
    title = plain_text(f"{label.name} · {label.algorithm} · seed {label.seed}")
    title.stylize("bold")
    return Group(title + Text(f"  {_state(view, summary)}", style="not bold"), lines)


def answer_summary(view: RunView) -> RenderableType:
    """What a question's run has found; as long as it is not finished, how far it is."""
    from winnow.analytics.answers import render_answer
    from winnow.analytics.question_run_folder import stored_answer

    assert view.path is not None
    title = plain_text(f"{view.label.name}  {_state(view, view.summary())}")
    title.stylize("bold", 0, len(view.label.name))
    return title if view.result is None else Group(title, render_answer(stored_answer(view.path)))


def run_state(view: RunView, stopped: str | None) -> str:
    if stopped:
        return "stopped"
    return "finished" if view.result else "not finished"


def _state(view: RunView, summary: Summary) -> str:
    state = run_state(view, summary.stopped)
    if summary.stopped:
        return f"{state} after {summary.rounds} of {_rounds(view.config.get('rounds', summary.rounds))}"
    return f"{state}, {_rounds(summary.rounds)}"


def run_tables(view: RunView) -> RenderableType:
    """Scores by class and by client, where the time and energy of simulated devices went, and who took part."""
    run = read_plot_data(view)
    classes, clients = run.evaluation and per_class_table(run.evaluation), client_cells(run)
    scores = [table(PER_CLASS_HEADER, classes)] if classes else []
    scores += [table(clients[0], clients[1][:CLIENTS_SHOWN])] if clients[1] else []
    costs = [table(*cost_cells([run.summary]))] if view.label.clock == "device" else []
    return Group(*scores, *costs, table(PARTICIPATION_HEADER, participation_table([run.participation])))


def _facts(view: RunView, summary: Summary) -> list[tuple[str, str]]:
    facts = [
        (f"best {summary.metric}", f"{_reading(summary.best)}{_test(summary.test_best)}"),
        (f"last {summary.metric}", f"{_reading(summary.last)}{_test(summary.test_last)}"),
    ]
    facts += _other_metrics(summary)
    if summary.evaluated_by != REFERENCE:
        facts.insert(0, ("evaluated", EVALUATED_BY_TEXT[summary.evaluated_by]))
    if summary.target is not None:
        facts.append((f"target {summary.target:g}", _reached(summary)))
    facts += privacy_spent_rows(summary)
    facts += [("stopped", summary.stopped)] if summary.stopped else []
    if view.label.clock != "none":
        time = f"{format_duration(summary.seconds)} {view.label.clock} time"
        facts.append(("total", f"{time}{_energy(summary, summary.wh)}"))
    facts += traffic([summary]).items()
    if summary.rejected:
        facts.append(("rejected", "1 reply" if summary.rejected == 1 else f"{summary.rejected} replies"))
    if view.evaluation and view.evaluation.notes:
        facts.append(("note", "; ".join(view.evaluation.notes)))
    if summary.abandoned:
        facts.append(("abandoned", abandoned_text(summary)))
    if bad := LatestAssessments(view.events()).headline():
        where = "" if view.path is None else f": winnow clients {shlex.quote(str(view.path))}"
        facts.append(("clients", f"{bad}{where}"))
    if view.path is not None:
        facts.append(("folder", str(view.path)))
        page = view.path / file_names.REPORT
        facts.append(("report", str(page) if page.exists() else f"none; write one with: winnow report {view.path}"))
    return facts


def _other_metrics(summary: Summary) -> list[tuple[str, str]]:
    """What was measured besides of the best model, on the reference set and the test set."""
    found: dict[str, list[str]] = {}
    for data in (REFERENCE, TEST):
        for name, value in summary.best_metrics.get(data, {}).items():
            if name not in (summary.metric, "loss"):
                found.setdefault(name, []).append(f"{format_score(value)} on the {data} set")
    return [(name, ", ".join(texts)) for name, texts in found.items()]


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def _reading(reading: MetricReading | None) -> str:
    return f"{format_score(reading.value)} (round {reading.round})" if reading else "–"


def _test(reading: MetricReading | None) -> str:
    return f", on the test set {format_score(reading.value)}" if reading else ""


def _reached(summary: Summary) -> str:
    if summary.rounds_to_target is None:
        return "not reached"
    parts = [f"reached after {_rounds(summary.rounds_to_target)}"]
    if summary.seconds_to_target is not None:
        parts.append(format_duration(summary.seconds_to_target))
    return ", ".join(parts) + _energy(summary, summary.wh_to_target or 0.0)


def _energy(summary: Summary, wh: float) -> str:
    """Nothing where the fleet counts none."""
    return f", {wh:.3g} Wh" if summary.wh else ""
