"""The page of a truth discovery."""

from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from winnow.analytics.truth.truth_cells import MAX_ROWS, SHOWN, item_cells, participant_cells, truth_notes
from winnow.analytics.truth.truth_report import TruthReport
from winnow.report.colours import colour, translucent
from winnow.report.figures import apply_layout
from winnow.report.html_page import page
from winnow.report.markup import bullet_list, card, cards, figure_html, html_table, section, side_by_side
from winnow.runs.atomic_write import one_line_errors, write_text_atomically

MAX_NAMED = 60
"""Participants with a bar of their own."""
BINS = 40


def write_truth_page(report: TruthReport, path: Path) -> Path:
    with one_line_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, truth_page(report))
    return path


def truth_page(report: TruthReport) -> str:
    return page(*truth_parts(report))


def truth_parts(report: TruthReport) -> tuple[str, str, str]:
    """The page's title, the line below it, and its sections."""
    answer = report.answer
    plots = []
    if any(record["trust"] is not None for record in report.participants):
        plots.append(figure_html(trust_figure(report), "How far each participant can be trusted."))
    if any(record["confidence"] is not None for record in report.items):
        plots.append(figure_html(confidence_figure(report), "How confident the method is of its items."))
    tables = (
        section("Items", html_table(_caption("items", report.items), *item_cells(report), texts=("truth",))),
        section("Participants", html_table(_caption("participants", report.participants), *participant_cells(report))),
    )
    return (
        "Truth discovery",
        _lead(report),
        section("Overview", _cards(answer), bullet_list(truth_notes(report)), side_by_side(*plots)) + "".join(tables),
    )


def truth_html(report: TruthReport) -> str:
    """For a notebook: the first rows of both tables, and the lines beside them."""
    tables = (
        ("items", report.items, item_cells(report)),
        ("participants", report.participants, participant_cells(report)),
    )
    shown = [
        html_table(_caption(what, records, SHOWN), header, rows[:SHOWN], texts=("truth",))
        for what, records, (header, rows) in tables
    ]
    return "".join(shown) + bullet_list(truth_notes(report))


def trust_figure(report: TruthReport) -> go.Figure:
    """A bar for each participant, the least trusted first; a histogram where they are many."""
    known = sorted((r for r in report.participants if r["trust"] is not None), key=lambda record: record["trust"])
    ink = colour(0)
    marker = {"color": translucent(ink, 0.8), "line": {"color": ink, "width": 1}}
    if len(known) > MAX_NAMED:
        figure = go.Figure(go.Histogram(x=[record["trust"] for record in known], nbinsx=BINS, marker=marker))
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
    counts, edges = np.histogram(known, BINS, (0, 1))  # the last bin has 1, too, which Plotly's own would not
    middles = (edges[1:] + edges[:-1]) / 2
    figure = go.Figure(go.Bar(x=middles.tolist(), y=counts.tolist(), width=1 / BINS, marker=marker))
    figure.update_xaxes(title="Confidence", range=[0, 1.01])
    figure.update_yaxes(title="Items")
    return apply_layout(figure, height=320)


def _lead(report: TruthReport) -> str:
    answer = report.answer
    of_whom = f"{len(report.participants):,} {'owners' if 'owners' in answer else 'participants'}"
    answers = f"{answer['answers']:,} answers" if "answers" in answer else "Answers"
    return (
        f"{answers} of {of_whom} about {len(report.items):,} items; method {answer['method']}, "
        f"{answer['iterations']} iterations"
    )


def _cards(answer: dict[str, Any]) -> str:
    pieces = [
        card("Items", f"{len(answer['items']):,}", "that were asked about"),
        card("Participants", f"{len(answer['participants']):,}", "who answered some of them"),
    ]
    if answer.get("agreement") is not None:
        pieces.append(card("As the majority says", f"{answer['agreement']:.1%}", "of the items"))
    if (private := answer.get("private")) is not None:
        pieces.append(card("Holders", str(private["holders"]), f"of whom {private['threshold']} open a sum"))
    return cards(pieces)


def _caption(what: str, records: list[dict[str, Any]], shown: int = MAX_ROWS) -> str:
    return f"{len(records):,} {what}" + (f", of which {shown:,} are shown" if len(records) > shown else "")
