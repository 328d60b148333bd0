"""What a report says of privacy: what it has cost, why a run stopped, who learns what, and what undoes itself."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

import plotly.graph_objects as go

from winnow.report import figures
from winnow.report.colours import colour
from winnow.report.markup import bullet_list, collapsible, figure_html, html_table, paragraph, section, subheading
from winnow.report.number_format import MISSING
from winnow.report.plot_data import Groups, RunPlotData
from winnow.runs.summary import PRIVACY


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivacyExplanation:
    """What a configuration means for those whose data it uses, in words; and its combinations that undo one another."""

    text: str
    warnings: tuple[str, ...] = ()


ExplainPrivacy: TypeAlias = Callable[[RunPlotData], PrivacyExplanation | None]
"""Explains a run's configuration; None where it cannot be read here."""

HEADER = ("Run", "Guarantee", "ε", "Budget", "δ")


def no_explanation(run: RunPlotData) -> None:
    """No explanation."""
    return


def privacy_section(groups: Groups, explain: ExplainPrivacy) -> str:
    """Empty where nothing was spent and nothing is explained."""
    rows = [row for algorithm, runs in groups.items() for run in runs for row in _spent(algorithm, run)]
    pieces = []
    if rows:
        caption = "Privacy spent (ε) and budget of each run. A smaller ε is a stronger guarantee."
        pieces += [html_table(caption, HEADER, rows), figure_html(spent_by_round(groups), "Privacy spent (ε) by round")]
    pieces += [paragraph(line) for algorithm, runs in groups.items() for run in runs for line in _ends(algorithm, run)]
    for algorithm, runs in groups.items():
        explained = explain(runs[0])
        if explained is not None:
            pieces.append(_explanation(algorithm, explained))
    return section("Privacy", *pieces) if pieces else ""


def spent_by_round(groups: Groups) -> go.Figure:
    """One line a run and guarantee, in the algorithm's colour."""
    figure = go.Figure()
    for index, (algorithm, runs) in enumerate(groups.items()):
        for run in runs:
            for name in run.summary.privacy_spent:
                figure.add_trace(_line(run, name, _called(algorithm, run, name), colour(index)))
    figures.set_round_axis(figure)
    figure.update_yaxes(title="ε", rangemode="tozero")
    figure.update_layout(meta=figures.COUNTED_IN["Round"])
    return figures.apply_layout(figure, height=300)


def _line(run: RunPlotData, guarantee: str, called: str, ink: str) -> go.Scatter:
    known = [(point.round, point.value(PRIVACY, guarantee)) for point in run.points]
    told = [(number, value) for number, value in known if value is not None]
    x, y = [number for number, _ in told], [value for _, value in told]
    line, meta = {"color": ink}, f"{PRIVACY}.{guarantee}"
    return go.Scatter(x=x, y=y, name=called, mode="lines+markers", line=line, showlegend=True, meta=meta)


def _called(algorithm: str, run: RunPlotData, guarantee: str) -> str:
    return escape(f"{algorithm}, seed {run.label.seed}, {_words(guarantee)}")


def _words(guarantee: str) -> str:
    return guarantee.replace("_", " ").replace("epsilon", "ε")


def _spent(algorithm: str, run: RunPlotData) -> Iterator[tuple[str, ...]]:
    for name, value in run.summary.privacy_spent.items():
        promise = run.summary.privacy_budgets.get(name)
        budget = f"{promise.budget:g}" if promise and promise.budget is not None else "none"
        delta = f"{promise.delta:g}" if promise else MISSING
        yield f"{algorithm}, seed {run.label.seed}", _words(name), f"{value:.4g}", budget, delta


def _ends(algorithm: str, run: RunPlotData) -> Iterator[str]:
    summary, which = run.summary, f"{algorithm}, seed {run.label.seed}"
    if summary.stopped:
        yield f"{which}, stopped after round {summary.rounds}: {summary.stopped}."


def _explanation(algorithm: str, explained: PrivacyExplanation) -> str:
    warned = bullet_list(f"Warning: {each}" for each in explained.warnings) if explained.warnings else ""
    return subheading(algorithm) + warned + collapsible("Who learns what", explained.text)
