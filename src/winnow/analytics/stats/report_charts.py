"""Figures of a statistics report, in the look of all reports."""

from collections.abc import Mapping
from html import escape
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from winnow.analytics.stats.report import ColumnStatistics, StatisticsReport, value_counts
from winnow.report.colours import colour, translucent
from winnow.report.figures import apply_layout

MAX_BARS = 40
SPREAD_SCALE = [[0.0, "#d55e00"], [0.5, "#f5f5f2"], [1.0, "#0072b2"]]
"""Negative, none and positive correlation, for readers of any colour vision."""


def column_figure(column: ColumnStatistics) -> go.Figure:
    """The histogram of numbers, or the counts of values; one colour a group."""
    cells: Mapping[str, Mapping[str, Any]] = column.column["groups"] or {"all": column.record}
    figure = go.Figure()
    for index, (label, cell) in enumerate(cells.items()):
        trace = _values(column, cell) if column.is_category else _density(column, cell)
        ink = colour(index)
        fill = translucent(ink, 0.8 if column.is_category or len(cells) == 1 else 0.45)
        trace.update(name=escape(label), marker={"color": fill, "line": {"color": ink, "width": 1}})
        figure.add_trace(trace)
    figure.update_layout(
        barmode="group" if column.is_category else "overlay",
        bargap=0.15 if column.is_category else 0,
        showlegend=len(cells) > 1,
    )
    figure.update_xaxes(title=escape(column.name), automargin=True)
    figure.update_yaxes(title="Rows" if column.is_category else "Rows per unit")
    return apply_layout(figure, height=300)


def _density(column: ColumnStatistics, cell: Mapping[str, Any]) -> go.Bar:
    """Bins differ in width, so areas are rows."""
    edges, counts = column.edges, cell.get("histogram") or []
    widths = [high - low for low, high in pairwise(edges)]
    return go.Bar(
        x=edges[:-1],
        y=[None if count is None else count / width for count, width in zip(counts, widths, strict=True)],
        width=widths,
        offset=0,
        customdata=[
            [f"{low:.4g} – {high:.4g}", "hidden" if count is None else f"{count:,}"]
            for low, high, count in zip(edges, edges[1:], counts, strict=False)
        ],
        hovertemplate="%{customdata[0]}<br>%{customdata[1]} rows",
    )


def _values(column: ColumnStatistics, cell: Mapping[str, Any]) -> go.Bar:
    """The most frequent values over all groups first."""
    overall = value_counts(column.column, column.record)
    shown = sorted(overall, key=lambda value: -(overall[value] or 0))
    counts = value_counts(column.column, cell)
    kept = [value for value in shown if value != "other" or overall[value]][:MAX_BARS]
    return go.Bar(
        x=[escape(value) for value in kept], y=[counts[value] for value in kept], hovertemplate="%{x}<br>%{y:,}"
    )


def correlation_figure(report: StatisticsReport) -> go.Figure:
    matrix = report.correlation
    names = [escape(name) for name in matrix]
    figure = go.Figure(
        go.Heatmap(
            z=[list(row.values()) for row in matrix.values()],
            x=names,
            y=names,
            zmin=-1,
            zmax=1,
            colorscale=SPREAD_SCALE,
            hovertemplate="%{y} and %{x}<br>r = %{z:.3f}<extra></extra>",
            colorbar={"title": {"text": "r", "side": "right"}, "thickness": 14},
        )
    )
    figure.update_yaxes(autorange="reversed", automargin=True, showgrid=False)
    figure.update_xaxes(automargin=True, showgrid=False)
    return apply_layout(figure, height=160 + 34 * len(names))


def survival_figure(test: Mapping[str, Any]) -> go.Figure:
    """Survival at the ends of intervals, with 95 % intervals."""
    figure = go.Figure()
    for index, (label, curve) in enumerate(test["curves"].items()):
        figure.add_trace(
            go.Scatter(
                x=test["times"],
                y=[1.0, *curve["survival"]],
                error_y={"array": [0.0, *(1.96 * error for error in curve["error"])], "thickness": 1, "width": 3},
                name=escape(label),
                mode="lines+markers",
                line={"color": colour(index), "shape": "linear"},
            )
        )
    figure.update_xaxes(title=escape(test["column"]))
    figure.update_yaxes(title="Without the event", range=[0, 1.02])
    figure.update_layout(showlegend=len(test["curves"]) > 1)
    return apply_layout(figure, height=340)
