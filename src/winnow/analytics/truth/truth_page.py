"""The page of a truth discovery."""

from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from winnow.analytics.truth.truth_report import TruthReport
from winnow.report.colours import colour, translucent
from winnow.report.figures import apply_layout
from winnow.report.html_page import page
from winnow.report.markup import bullet_list, card, cards, figure_html, html_table, section, side_by_side
from winnow.runs.atomic_write import one_line_errors, write_text_atomically

MAX_ROWS = 5000
"""Of a table; CSV files have all."""
MAX_NAMED = 60
"""Participants with a bar of their own."""


def write_truth_page(report: TruthReport, path: Path) -> Path:
    with one_line_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, truth_page(report))
    return path


def truth_page(report: TruthReport) -> str:
    answer = report.answer
    lead = (
        f"{answer['answers']:,} answers of {len(report.participants):,} participants about {len(report.items):,} "
        f"items; method {answer['method']}, {answer['iterations']} iterations"
    )
    plots = [figure_html(trust_figure(report), "How far each participant can be trusted.")]
    if any(record["confidence"] is not None for record in report.items):
        plots.append(figure_html(confidence_figure(report), "How confident the method is of its items."))
    tables = (
        section("Items", html_table(_caption("items", report.items), *item_cells(report), texts=("truth",))),
        section("Participants", html_table(_caption("participants", report.participants), *participant_cells(report))),
    )
    return page(
        "Truth discovery",
        lead,
        section("Overview", _cards(answer), bullet_list(truth_notes(report)), side_by_side(*plots)) + "".join(tables),
    )


def item_cells(report: TruthReport) -> tuple[list[str], list[list[str]]]:
    """Items, the least confident first."""
    ordered = sorted(report.items, key=lambda record: (record["confidence"] is None, record["confidence"] or 0.0))
    rows = [[record["item"], _truth(record["truth"]), _share(record["confidence"])] for record in ordered]
    return ["item", "truth", "confidence"], rows[:MAX_ROWS]


def participant_cells(report: TruthReport) -> tuple[list[str], list[list[str]]]:
    """Participants, the most trusted first."""
    ordered = sorted(
        report.participants, key=lambda record: -(record["trust"] if record["trust"] is not None else -1e9)
    )
    return ["participant", "trust"], [[record["worker"], _share(record["trust"])] for record in ordered[:MAX_ROWS]]


def truth_notes(report: TruthReport) -> list[str]:
    """What a reader has to know beside the tables."""
    answer, lines = report.answer, []
    if answer["agreement"] is not None:
        lines.append(f"{answer['agreement']:.1%} of the items have the label that most participants gave")
    if unanswered := sum(record["truth"] is None for record in report.items):
        lines.append(f"nobody answered {unanswered:,} of the items")
    if (private := answer["private"]) is not None:
        lines.append(
            f"private: {private['threshold']} of {private['holders']} holders opened each sum; "
            f"{private['stayed']:,} of {len(report.participants):,} participants stayed; "
            "trust is what each of them knows of itself"
        )
        if private["stopped"]:
            lines.append(f"stopped early: {private['stopped']}; the confidences are those of the iteration before")
    return lines


def trust_figure(report: TruthReport) -> go.Figure:
    """A bar for each participant, the least trusted first; a histogram where they are many."""
    known = sorted((r for r in report.participants if r["trust"] is not None), key=lambda record: record["trust"])
    ink = colour(0)
    marker = {"color": translucent(ink, 0.8), "line": {"color": ink, "width": 1}}
    if len(known) > MAX_NAMED:
        figure = go.Figure(go.Histogram(x=[record["trust"] for record in known], nbinsx=40, marker=marker))
        figure.update_xaxes(title="Trust")
        figure.update_yaxes(title="Participants")
    else:
        names = [escape(record["worker"]) for record in known]
        figure = go.Figure(go.Bar(x=names, y=[record["trust"] for record in known], marker=marker))
        figure.update_xaxes(title="Participant", type="category", automargin=True)
        figure.update_yaxes(title="Trust")
    return apply_layout(figure, height=320)


def confidence_figure(report: TruthReport) -> go.Figure:
    known = [record["confidence"] for record in report.items if record["confidence"] is not None]
    ink = colour(1)
    marker = {"color": translucent(ink, 0.8), "line": {"color": ink, "width": 1}}
    figure = go.Figure(go.Histogram(x=known, xbins={"start": 0, "end": 1.0001, "size": 0.025}, marker=marker))
    figure.update_xaxes(title="Confidence", range=[0, 1.01])
    figure.update_yaxes(title="Items")
    return apply_layout(figure, height=320)


def _cards(answer: dict[str, Any]) -> str:
    pieces = [
        card("Items", f"{len(answer['items']):,}", f"from {answer['answers']:,} answers"),
        card("Participants", f"{len(answer['participants']):,}", "who answered some of them"),
    ]
    if answer["agreement"] is not None:
        pieces.append(card("As the majority says", f"{answer['agreement']:.1%}", "of the items"))
    if (private := answer["private"]) is not None:
        pieces.append(card("Holders", str(private["holders"]), f"of whom {private['threshold']} open a sum"))
    return cards(pieces)


def _caption(what: str, records: list[dict[str, Any]]) -> str:
    return f"{len(records):,} {what}" + (f", of which {MAX_ROWS:,} are shown" if len(records) > MAX_ROWS else "")


def _truth(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
