"""The figures of a report, as Plotly figures without colours of paper and ink: the page adds those of its scheme."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any, TypeAlias

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from winnow.report.colours import SCORE_COLOUR_SCALE, colour, translucent
from winnow.report.plot_data import Groups, ParticipationCounts, RunPlotData, ScoreHistory
from winnow.runs import HistoryPoint
from winnow.runs.summary import JOULES_PER_WH, REFERENCE, TEST

BARS_UP_TO = 2_000
NAMES_UP_TO = 40
HEAT_ROWS_UP_TO = 120
HEAT_COLUMNS_UP_TO = 500
ROUND_TICKS_UP_TO = 20
"""So many rounds have a tick each; of more, Plotly chooses some, and none between rounds."""
MIN_RELATIVE_SCORE = 1e-3
"""Scores below this share of a uniform draw's look alike: such a client is all but excluded."""

AXES: dict[str, Callable[[HistoryPoint], float]] = {
    "Round": lambda point: point.round,
    "Device time (minutes)": lambda point: point.seconds / 60,
    "Energy (Wh)": lambda point: point.joules / JOULES_PER_WH,
}
COUNTED_IN = {
    "Round": {"x": "round", "per": 1, "ticks_up_to": ROUND_TICKS_UP_TO},
    "Device time (minutes)": {"x": "seconds", "per": 60},
    "Energy (Wh)": {"x": "joules", "per": JOULES_PER_WH},
}
"""Which column of metrics.csv an axis shows, in which unit: whoever follows a run adds its new rows by that, and leaves
ticks to Plotly when there are more than so many rounds."""


Line: TypeAlias = dict[str, Any]
"""A trace as Plotly takes it. A figure copies traces that are objects, which takes as long again."""

TRANSPARENT = "rgba(0,0,0,0)"
LAYOUT: dict[str, Any] = {
    "template": "none",
    "margin": {"l": 64, "r": 16, "t": 36, "b": 52},
    "paper_bgcolor": TRANSPARENT,
    "plot_bgcolor": TRANSPARENT,
    "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.0, "xanchor": "left", "x": 0},
}
"""Set key by key: `update_layout` takes ten times as long, which counts where a page has dozens of figures."""


def progress(groups: Groups, axis: str, metric: str | None = None) -> go.Figure:
    """The runs' metric, or another one, against rounds, device time or energy.

    One colour an algorithm, thin lines for seeds, bold for means. The mean curve passes through the mean cost and the
    mean metric of each round. A single run that the reference set evaluates shows its test set too.
    """
    lines: list[Line] = []
    own = next(iter(groups.values()))[0].label.metric
    metric = own if metric is None else metric
    for index, (algorithm, runs) in enumerate(groups.items()):
        name, ink = escape(algorithm), colour(index)
        curves = [metric_curve(run, run.label.evaluated_by, metric, AXES[axis]) for run in runs]
        if len(runs) == 1:
            evaluated_by = runs[0].label.evaluated_by
            lines.append(line(curves[0], name, ink, width=2.5, column=f"{evaluated_by}.{metric}"))
            if evaluated_by == REFERENCE:
                test = metric_curve(runs[0], TEST, metric, AXES[axis])
                column = f"{TEST}.{metric}"
                lines.append(line(test, f"{name}, test set", ink, width=1.5, dash="dot", column=column))
            continue
        for run, curve in zip(runs, curves, strict=True):
            seed = f"{name}, seed {run.label.seed}"
            lines.append(line(curve, seed, translucent(ink, 0.35), width=1, in_legend=False))
        lines.append(line(mean_curve(curves), f"{name}, mean of {len(runs)}", ink, width=3))
    figure = go.Figure(lines)
    targets = {run.label.target for runs in groups.values() for run in runs if metric == own}
    for target in targets - {None}:
        figure.add_hline(y=target, line={"dash": "dash", "width": 1, "color": "#888888"})
    axis_title = axis.replace("Device", clock(groups).capitalize())
    figure.update_layout(xaxis_title=axis_title, yaxis_title=escape(metric), hovermode="closest", meta=COUNTED_IN[axis])
    if axis == "Round":
        set_round_axis(figure)
    return apply_layout(figure, height=380)


def clock(groups: Groups) -> str:
    """Whose time the runs tell: "device" unless all ran between real sites."""
    clocks = {run.label.clock for runs in groups.values() for run in runs}
    return "wall" if clocks == {"wall"} else "device"


def metric_curve(
    run: RunPlotData, data: str, metric: str, cost: Callable[[HistoryPoint], float]
) -> NDArray[np.float64]:
    """Two columns: the cost so far and the metric on some data, nan where it was not measured."""
    costs = np.array([cost(point) for point in run.points], np.float64)
    values = np.array([point.value(data, metric) for point in run.points], np.float64)
    return np.column_stack([costs, values])


def mean_curve(curves: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Through the mean cost and the mean metric of each round that all have."""
    shared = min(map(len, curves))
    mean: NDArray[np.float64] = np.mean([curve[:shared] for curve in curves], axis=0)
    return mean


def line(
    curve: NDArray[np.float64],
    name: str,
    ink: str,
    *,
    width: float,
    dash: str = "solid",
    column: str | None = None,
    in_legend: bool = True,
) -> Line:
    """A line; `column` of metrics.csv is where more of it comes from while the run goes on."""
    known = curve[~np.isnan(curve[:, 1])]
    return {
        "type": "scatter",
        "x": known[:, 0],
        "y": known[:, 1],
        "name": name,
        "mode": "lines",
        "line": {"color": ink, "width": width, "dash": dash},
        "showlegend": in_legend and len(known) > 0,
        "meta": column,
    }


def participation(run: ParticipationCounts) -> go.Figure:
    """Selections by client, ordered and coloured by what was done to its data (figure 7 of the paper)."""
    figure = go.Figure()
    by_client = len(run.of_client) <= BARS_UP_TO
    place = np.empty(len(run.of_client), np.int64)
    place[run.order] = np.arange(len(run.of_client))
    for index, condition in enumerate(run.labels):
        members = np.flatnonzero(run.of_client == index)
        if not len(members):
            continue
        name, look = escape(condition), {"color": colour(index), "line": {"width": 0}}
        counts = run.selections[members]
        if by_client:
            hover = "%{customdata}<br>selected %{y} times"
            called = [escape(run.client_name(client)) for client in members.tolist()]
            bars = go.Bar(x=place[members], y=counts, customdata=called, hovertemplate=hover)
        else:
            bars = go.Bar(x=[name], y=[counts.mean()], error_y={"array": [counts.std()], "color": "#888888"})
        figure.add_trace(bars.update(name=name, marker=look))
    if by_client and run.names and len(run.names) <= NAMES_UP_TO:
        figure.update_xaxes(
            tickvals=np.arange(len(run.order)),
            ticktext=[escape(run.client_name(client)) for client in run.order.tolist()],
        )
    elif by_client:
        middles, labels = _groups(run, run.of_client[run.order])
        figure.update_xaxes(tickvals=middles, ticktext=labels)
    figure.update_xaxes(showgrid=False, title="Clients" if by_client else None)
    figure.update_yaxes(title="Times selected" if by_client else "Times selected per client")
    figure.update_layout(bargap=0.15, barmode="overlay")
    return apply_layout(figure, height=340)


def _groups(run: ParticipationCounts, groups: NDArray[np.int64]) -> tuple[list[float], list[str]]:
    """Where the middle of each condition lies among places ordered by condition, and what it is called."""
    present = np.unique(groups)
    middles = [float(np.flatnonzero(groups == group).mean()) for group in present]
    return middles, [escape(run.labels[group]) for group in present]


def score_map(scores: ScoreHistory, run: ParticipationCounts) -> go.Figure:
    """Scores by round relative to a uniform draw, on a logarithmic scale (figure 8 of the paper).

    Rows are clients ordered by condition; a large population has one row a condition, the mean of its clients.
    """
    keep = np.unique(np.linspace(0, len(scores.rounds) - 1, HEAT_COLUMNS_UP_TO).astype(int))
    relative = scores.values[keep].T * scores.values.shape[1]
    if len(relative) <= HEAT_ROWS_UP_TO:
        rows, groups = relative[run.order], run.of_client[run.order]
        names = [escape(run.client_name(client)) for client in run.order.tolist()]
    else:
        groups = np.unique(run.of_client)
        rows = np.stack([relative[run.of_client == group].mean(axis=0) for group in groups])
        names = [escape(run.labels[group]) for group in groups]
    figure = go.Figure(_heat(rows, scores.rounds[keep], names))
    named = run.names and len(rows) == len(run.names) <= NAMES_UP_TO
    places, labels = (np.arange(len(rows)).tolist(), names) if named else _groups(run, groups)
    for edge in np.flatnonzero(np.diff(groups)):
        figure.add_hline(y=edge + 0.5, line={"color": "#ffffff", "width": 1.5})
    figure.update_yaxes(
        tickvals=places, ticktext=labels, autorange="reversed", showgrid=False, zeroline=False, automargin=True
    )
    figure.update_xaxes(showgrid=False)
    set_round_axis(figure)
    return apply_layout(figure, height=min(160 + 14 * len(rows), 900) if len(rows) > 8 else 120 + 40 * len(rows))


def _heat(rows: NDArray[np.float64], rounds: NDArray[np.int64], names: Sequence[str]) -> go.Heatmap:
    decades = np.arange(round(np.log10(MIN_RELATIVE_SCORE)), 3)
    return go.Heatmap(
        z=np.log10(np.maximum(np.nan_to_num(rows), MIN_RELATIVE_SCORE)),
        x=rounds,
        customdata=np.stack([np.broadcast_to(np.array(names)[:, None], rows.shape), _hover(rows)], axis=-1),
        hovertemplate="%{customdata[0]}<br>round %{x}<br>%{customdata[1]} × uniform<extra></extra>",
        colorscale=SCORE_COLOUR_SCALE,
        colorbar={
            "title": {"text": "× uniform", "side": "right"},
            "tickvals": decades,
            "ticktext": [f"{10.0**decade:g}" for decade in decades],
            "thickness": 14,
        },
    )


def _hover(rows: NDArray[np.float64]) -> NDArray[np.str_]:
    return np.array([[f"{value:.3g}" for value in row] for row in rows])


def set_round_axis(figure: go.Figure) -> None:
    """Rounds along the x axis, which are whole: an axis of few would have ticks at half rounds."""
    rounds = np.concatenate([np.asarray(trace.x, np.float64) for trace in figure.data] or [np.zeros(0)])
    figure.layout.xaxis.title = "Round"
    if not len(rounds) or np.ptp(rounds) < ROUND_TICKS_UP_TO:
        figure.layout.xaxis.dtick = 1


def apply_layout(figure: go.Figure, *, height: int) -> go.Figure:
    """The look that all figures share."""
    for key, value in LAYOUT.items():
        figure.layout[key] = value
    figure.layout.height = height
    return figure
