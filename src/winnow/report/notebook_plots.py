"""What `result.plot(…)` and `comparison.plot(…)` draw: the figures of the report, one at a time, for a notebook."""

from collections.abc import Sequence

import plotly.graph_objects as go

from winnow.core import ConfigError, suggest
from winnow.report.client_section import client_scores
from winnow.report.figures import AXES, mean_curve, metric_curve, participation, progress, score_map
from winnow.report.model_quality import confusion_figure, loss_curves
from winnow.report.plot_data import RunPlotData, read_plot_data
from winnow.report.run_groups import group_by_experiment
from winnow.report.svg_line_chart import svg_line_chart
from winnow.runs import RunView
from winnow.runs.summary import PRIVACY

OVER = dict(zip(("round", "time", "energy"), AXES, strict=True))
"""What a curve is drawn over, and the axis of that name."""

FIGURES = ("clients", "selection", "loss", "scores", "confusion")
"""Of one run, besides its metrics."""

INK, GRID = "#808080", "rgba(128, 128, 128, 0.25)"
"""Readable on the white and on the black paper of notebooks, which do not tell which they have."""


def plot_run(view: RunView, what: str | None, over: str) -> go.Figure:
    """The run's metric or another by its name; or one of FIGURES."""
    run = read_plot_data(view)
    if what == "clients":
        if run.clients is None:
            raise ConfigError('plot: clients were not assessed in this run; plot("selection") shows who took part')
        return for_notebook(client_scores(run.clients))
    if what == "selection":
        return for_notebook(participation(run.participation))
    if what == "loss":
        return for_notebook(loss_curves(group_by_experiment([view])))
    if what == "scores":
        if run.scores is None:
            raise ConfigError(f"plot: {run.label.algorithm} gives clients no scores")
        return for_notebook(score_map(run.scores, run.participation))
    if what == "confusion":
        if run.evaluation is None or run.evaluation.overall is None or run.evaluation.overall.confusion is None:
            raise ConfigError("plot: this run has no confusion matrix; classifications with a test set have one")
        return for_notebook(confusion_figure(run.evaluation.classes, run.evaluation.overall))
    return plot_metric([view], what, over, besides=FIGURES)


def plot_metric(views: Sequence[RunView], metric: str | None, over: str, besides: Sequence[str] = ()) -> go.Figure:
    """A metric of one run or of several, against rounds, the time of devices or their energy."""
    if over not in OVER:
        raise ConfigError(f"plot: over={over!r} is unknown; {suggest(over, OVER)}")
    groups = group_by_experiment(views)
    known = _metrics([run for runs in groups.values() for run in runs])
    if metric is not None and metric not in known:
        raise ConfigError(f"plot: {metric!r} was not measured; {suggest(metric, {*known, *besides}, at_most=12)}")
    return for_notebook(progress(groups, OVER[over], metric))


def metric_chart(views: Sequence[RunView]) -> str:
    """The metric by round as a small SVG: the mean over seeds of each algorithm."""
    groups = group_by_experiment(views)
    rounds = AXES[OVER["round"]]
    curves = {
        name: mean_curve([metric_curve(run, run.label.evaluated_by, run.label.metric, rounds) for run in runs]).tolist()
        for name, runs in groups.items()
    }
    return svg_line_chart(curves, x_title="round", y_title=views[0].label.metric)


def for_notebook(figure: go.Figure) -> go.Figure:
    """With ink, which a report's page adds by its reader's colour scheme."""
    figure.update_layout(font={"color": INK})
    figure.update_xaxes(gridcolor=GRID, zerolinecolor=GRID, linecolor=GRID)
    figure.update_yaxes(gridcolor=GRID, zerolinecolor=GRID, linecolor=GRID)
    return figure


def _metrics(runs: Sequence[RunPlotData]) -> list[str]:
    """What was measured on the data that a run evaluates on, in order of appearance."""
    names = (
        name
        for run in runs
        for point in run.points
        for data, values in point.metrics.items()
        if data != PRIVACY
        for name in values
    )
    return list(dict.fromkeys(names))
