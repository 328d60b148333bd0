"""Accuracy against what it cost, as in the paper's figures 2 and 3: rounds, bits and seconds side by side."""

from collections.abc import Sequence
from html import escape

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from winnow.papers.figures import GREY
from winnow.papers.result_json_lines import RunResultLine
from winnow.report.colours import PALETTE, colour
from winnow.report.figures import apply_layout

PANELS = ("Rounds", "Bits sent by a client", "Seconds")


def accuracy_cost_figure(
    curves: Sequence[tuple[str, Sequence[RunResultLine], float, float]], target: float
) -> go.Figure:
    """Each method's mean over seeds; a curve has a title, its runs, and the bits and seconds of one round."""
    figure = make_subplots(rows=1, cols=len(PANELS), shared_yaxes=True, horizontal_spacing=0.03)
    for index, (title, runs, bits, seconds) in enumerate(curves):
        shared = min(len(run.trace) for run in runs)
        mean = np.mean([np.array(run.trace[:shared], np.float64) for run in runs], axis=0)
        line = {"color": colour(index), "width": 2, "dash": "solid" if index < len(PALETTE) else "dot"}
        for column, unit in enumerate((1.0, bits, seconds), start=1):
            figure.add_trace(
                go.Scatter(
                    x=unit * np.arange(1, shared),
                    y=mean[1:],
                    name=escape(title),
                    legendgroup=title,
                    showlegend=column == 1,
                    mode="lines",
                    line=line,
                ),
                row=1,
                col=column,
            )
    figure.add_hline(y=target, line={"dash": "dash", "width": 1, "color": GREY})
    for column, label in enumerate(PANELS, start=1):
        figure.update_xaxes(title=label, type="log" if column > 1 else None, row=1, col=column)
    figure.update_yaxes(title="Accuracy", row=1, col=1)
    return apply_layout(figure, height=460).update_layout(legend={"y": 1.1}, margin={"t": 96})
