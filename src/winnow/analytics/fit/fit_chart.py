"""A fitted model as a figure."""

from collections.abc import Mapping
from html import escape
from typing import Any

import plotly.graph_objects as go

from winnow.core import ConfigError
from winnow.report.colours import colour, translucent
from winnow.report.figures import apply_layout
from winnow.report.notebook_plots import for_notebook

NORMAL_QUANTILE = 1.96
"""Of 97.5 %: half the width of a 95 % interval in standard errors."""


def fit_figure(answer: Mapping[str, Any]) -> go.Figure:
    if answer["model"] == "pca":
        return for_notebook(explained_figure(answer))
    if "terms" not in answer:
        raise ConfigError(f"plot: {answer['model']} has no estimates by term to draw; use .summary() or .answer")
    return for_notebook(estimates_figure(answer))


def estimates_figure(answer: Mapping[str, Any]) -> go.Figure:
    """A row for each term, in the units of the data; a fit without standard errors has points alone."""
    terms = answer["terms"]
    spread = [None if each["std_error"] is None else NORMAL_QUANTILE * each["std_error"] for each in terms]
    figure = go.Figure(
        go.Scatter(
            x=[each["estimate"] for each in terms],
            y=[escape(each["term"]) for each in terms],
            error_x={"array": spread} if any(width is not None for width in spread) else None,
            mode="markers",
            marker={"color": colour(0), "size": 9},
        )
    )
    figure.add_vline(x=0, line={"dash": "dash", "width": 1, "color": "#888888"})
    figure.update_xaxes(title="Estimate, with its 95 % interval")
    figure.update_yaxes(type="category", autorange="reversed", automargin=True)
    return apply_layout(figure, height=140 + 30 * len(terms))


def explained_figure(answer: Mapping[str, Any]) -> go.Figure:
    shares, ink = answer["explained_share"], colour(0)
    bars = go.Bar(
        x=[f"component {place + 1}" for place in range(len(shares))],
        y=shares,
        marker={"color": translucent(ink, 0.8), "line": {"color": ink, "width": 1}},
    )
    figure = go.Figure(bars)
    figure.update_yaxes(title="Share of the variance", tickformat=".0%")
    return apply_layout(figure, height=320)
