"""How evenly clients are served: their own scores, apart from the mean."""

from html import escape

import numpy as np
import plotly.graph_objects as go

from winnow.report.colours import colour, translucent
from winnow.report.figures import apply_layout, set_round_axis
from winnow.report.number_format import MeanAndSd, mean_sd_text
from winnow.report.plot_data import Groups, RunPlotData
from winnow.report.tables import Cells

EVALUATED_MODELS = {"clients": "client's model", "tuned": "fine-tuned model"}
"""What each client evaluates, by the data that its scores are filed under."""

SPREAD_METRICS = ("spread", "lowest_decile", "highest_decile")


def fairness_header(metric: str) -> Cells:
    return ("Algorithm", "Evaluated model", f"Mean {metric}", "Spread", "Lowest decile", "Highest decile")


def fairness_table(groups: Groups) -> list[Cells]:
    """The last readings over clients, on average over an algorithm's runs; nothing where clients do not evaluate."""
    return [
        (algorithm, what, *(mean_sd_text(MeanAndSd.of(column), decimals=4) for column in zip(*readings, strict=True)))
        for algorithm, runs in groups.items()
        for data, what in EVALUATED_MODELS.items()
        if (readings := [last for run in runs if (last := _last(run, data)) is not None])
    ]


def _last(run: RunPlotData, data: str) -> tuple[float | None, ...] | None:
    point = next((point for point in reversed(run.points) if data in point.metrics), None)
    return None if point is None else tuple(point.value(data, name) for name in (run.label.metric, *SPREAD_METRICS))


def fairness_bands(groups: Groups) -> go.Figure:
    """The mean over clients by round, in a band from the lowest to the highest decile; of each algorithm's first run.

    A dotted line without a band is the mean once clients have tuned the model.
    """
    figure = go.Figure()
    for index, (algorithm, runs) in enumerate(groups.items()):
        run, name, ink = runs[0], escape(algorithm), colour(index)
        own, tuned = _curves(run, "clients"), _curves(run, "tuned")
        if len(own):
            band = {
                "x": np.concatenate([own[:, 0], own[::-1, 0]]),
                "y": np.concatenate([own[:, 2], own[::-1, 3]]),
            }
            hidden = {"width": 0}
            figure.add_trace(
                go.Scatter(
                    **band,
                    mode="lines",
                    fill="toself",
                    fillcolor=translucent(ink, 0.15),
                    line=hidden,
                    hoverinfo="skip",
                    showlegend=False,
                )
            )
            figure.add_trace(go.Scatter(x=own[:, 0], y=own[:, 1], name=name, mode="lines", line={"color": ink}))
        if len(tuned):
            dotted = {"color": ink, "dash": "dot"}
            figure.add_trace(
                go.Scatter(x=tuned[:, 0], y=tuned[:, 1], name=f"{name}, tuned", mode="lines+markers", line=dotted)
            )
    figure.update_layout(hovermode="closest")
    set_round_axis(figure)
    return apply_layout(figure, height=340)


def _curves(run: RunPlotData, data: str) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    """Columns: round, mean, lowest and highest decile, for the rounds in which clients evaluated."""
    names = (run.label.metric, "lowest_decile", "highest_decile")
    rows = [
        (point.round, *(point.value(data, name) for name in names)) for point in run.points if data in point.metrics
    ]
    return np.array(rows, np.float64).reshape(-1, 4)
