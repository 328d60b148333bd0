"""The leaves of an ensemble: how each does alone, beside what they give together."""

from html import escape

import numpy as np
import plotly.graph_objects as go

from winnow.report.colours import colour
from winnow.report.figures import AXES, COUNTED_IN, apply_layout, line, metric_curve, set_round_axis
from winnow.report.markup import figure_html, html_table, section, subheading
from winnow.report.model_quality import PSEUDO_LABELS
from winnow.report.number_format import score_text
from winnow.report.plot_data import Groups, RunPlotData
from winnow.runs.summary import PRIVACY, SCORED

DRAWN_UP_TO = 12
"""Of more leaves than this, there is the table alone."""
NO_LEAVES = frozenset({*SCORED, PRIVACY, PSEUDO_LABELS})
"""What a round tells under a name that is no leaf's."""


def leaves_section(groups: Groups) -> str:
    """Of each experiment's first run, where it is an ensemble."""
    pieces: list[str] = []
    for algorithm, (run, *_) in groups.items():
        leaves = leaf_names(run)
        if not leaves:
            continue
        pieces += [subheading(f"{algorithm}, seed {run.label.seed}")] if len(groups) > 1 else []
        metric = run.label.metric
        caption = f"Each leaf alone, and all leaves together: {metric} by round"
        pieces += [figure_html(leaf_curves(run, leaves), caption)] if len(leaves) <= DRAWN_UP_TO else []
        rows = [(leaf, *map(score_text, _best_and_last(run, leaf))) for leaf in leaves]
        pieces.append(html_table("Each leaf alone.", ("Leaf", f"Best {metric}", f"Last {metric}"), rows))
    return section("Leaves of the ensemble", *pieces) if pieces else ""


def leaf_names(run: RunPlotData) -> list[str]:
    """Whose scores rounds tell besides those of the whole model."""
    told = dict.fromkeys(name for point in run.points for name in point.metrics if name not in NO_LEAVES)
    return [name for name in told if any(point.value(name, run.label.metric) is not None for point in run.points)]


def leaf_curves(run: RunPlotData, leaves: list[str]) -> go.Figure:
    axis, metric = "Round", run.label.metric
    lines = [
        line(
            metric_curve(run, leaf, metric, AXES[axis]),
            escape(leaf),
            colour(place),
            width=1.5,
            column=f"{leaf}.{metric}",
        )
        for place, leaf in enumerate(leaves, start=1)
    ]
    whole = metric_curve(run, run.label.evaluated_by, metric, AXES[axis])
    lines.append(line(whole, "together", colour(0), width=3, column=f"{run.label.evaluated_by}.{metric}"))
    figure = go.Figure(lines)
    figure.update_layout(yaxis_title=escape(metric), hovermode="closest", meta=COUNTED_IN[axis])
    set_round_axis(figure)
    return apply_layout(figure, height=340)


def _best_and_last(run: RunPlotData, leaf: str) -> tuple[float | None, float | None]:
    values = metric_curve(run, leaf, run.label.metric, AXES["Round"])[:, 1]
    known = values[~np.isnan(values)].tolist()
    best = min if run.label.lower_is_better else max
    return (best(known), known[-1]) if known else (None, None)
