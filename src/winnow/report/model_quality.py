"""What a model is worth in the end: its losses by round, which class it takes for which, and its scores by client."""

from collections.abc import Sequence
from html import escape

import numpy as np
import plotly.graph_objects as go

from winnow.report.colours import PALETTE, colour
from winnow.report.figures import COUNTED_IN, apply_layout, set_round_axis
from winnow.report.markup import bullet_list, figure_html, html_table, paragraph, section, side_by_side, subheading
from winnow.report.number_format import MISSING, MeanAndSd, mean_sd_text, score_text
from winnow.report.plot_data import Groups, RunPlotData
from winnow.report.tables import Cells
from winnow.runs import EvaluationRecord, HistoryPoint, SampleScores
from winnow.runs.summary import REFERENCE, TEST

SHOWN_UP_TO = 6
"""Of more algorithms than this, no classes are shown."""
LABELLED_CLASSES = 30
"""Of more classes, a figure has no numbers in its cells."""
CLIENTS_SHOWN = 50
MATRICES_UP_TO = 12
"""Of more clients or of more than as many classes, no client's confusion matrix is drawn."""
TRAINING, CLIENTS, PSEUDO_LABELS = "training", "clients", "pseudo-labels"
LOSSES = {TRAINING: "dash", REFERENCE: "solid", TEST: "dot", CLIENTS: "dashdot"}
"""Whose losses are drawn, and how."""


# Losses ---------------------------------------------------------------------------------------------------------------


def losses_section(groups: Groups) -> str:
    figure = loss_curves(groups)
    if not figure.data:
        return ""
    note = "" if all(len(runs) == 1 for runs in groups.values()) else "; of each algorithm's first run"
    caption = f"Mean loss by round, on the clients' training samples and others{note}"
    return section("Losses", figure_html(figure, caption))


def loss_curves(groups: Groups) -> go.Figure:
    """The training loss that clients report, and the model's loss on each set that it was evaluated on; of several
    algorithms on the reference set alone.
    """
    figure = go.Figure()
    shown = {data: dash for data, dash in LOSSES.items() if len(groups) == 1 or data in (TRAINING, REFERENCE)}
    for index, (algorithm, runs) in enumerate(groups.items()):
        for place, (data, dash) in enumerate(shown.items()):
            known = [(point.round, _loss(point, data)) for point in runs[0].points]
            rounds, values = np.array(known, np.float64).reshape(-1, 2).T
            there = np.isfinite(values)
            if not there.any():
                continue
            name = {TRAINING: "training", CLIENTS: "clients' tests"}.get(data, f"{data} set")
            figure.add_trace(
                go.Scatter(
                    x=rounds[there],
                    y=values[there],
                    name=name if len(groups) == 1 else f"{escape(algorithm)}, {name}",
                    mode="lines",
                    line={"color": colour(place if len(groups) == 1 else index), "dash": dash, "width": 2},
                    meta="loss" if data == TRAINING else f"{data}.loss",
                )
            )
    figure.update_layout(yaxis_title="Loss", hovermode="closest", meta=COUNTED_IN["Round"])
    set_round_axis(figure)
    figure.update_yaxes(rangemode="tozero")
    return apply_layout(figure, height=340)


def _loss(point: HistoryPoint, data: str) -> float:
    value = point.loss if data == TRAINING else point.value(data, "loss")
    return float("nan") if value is None else value


# Classes --------------------------------------------------------------------------------------------------------------


def classes_section(groups: Groups) -> str:
    """Which class is taken for which, and each class's precision, recall and F1; of each algorithm's first run."""
    pieces: list[str] = []
    for algorithm, runs in groups.items():
        record = runs[0].evaluation
        if record is None or record.overall is None or record.overall.confusion is None:
            continue
        pieces += [subheading(algorithm)] if len(groups) > 1 else []
        what = f"{record.overall.name} set, model of round {record.round}"
        caption = f"Confusion matrix on the {what}: rows are true classes, columns are predictions"
        rows = per_class_table(record)
        pieces.append(
            side_by_side(
                figure_html(confusion_figure(record.classes, record.overall), caption),
                html_table(f"By class, on the {what}.", PER_CLASS_HEADER, rows),
            )
        )
    return section("Classes", *pieces) if pieces and len(groups) <= SHOWN_UP_TO else ""


def notes_section(groups: Groups) -> str:
    """What scores are of, and what could not be measured at the end."""
    records = [run.evaluation for runs in groups.values() for run in runs if run.evaluation]
    notes = dict.fromkeys(note for record in records for note in record.notes)
    return section("Notes on the scores", bullet_list(notes)) if notes else ""


def pseudo_labels_section(groups: Groups) -> str:
    """Of how many samples clients were sure, and in a simulation how many of the labels are right."""
    rows = [_pseudo_label_cells(algorithm, runs) for algorithm, runs in groups.items()]
    shown = [row for row in rows if set(row[1:]) != {MISSING}]
    caption = (
        "Shares of samples without a label that clients gave one in the last round, as they report it; and, in a"
        " simulation, which knows the hidden labels, what the last model is sure of and how much of that is right."
    )
    return section("Pseudo-labels", html_table(caption, PSEUDO_LABELS_HEADER, shown)) if shown else ""


PSEUDO_LABELS_HEADER: Cells = ("Algorithm", "Sure, as clients report", "Sure, in the simulation", "Of these, right")


def _pseudo_label_cells(algorithm: str, runs: Sequence[RunPlotData]) -> Cells:
    told = [
        [value for point in run.points if (value := point.value(PSEUDO_LABELS, "sure")) is not None] for run in runs
    ]
    known = [run.evaluation.pseudo_labels for run in runs if run.evaluation and run.evaluation.pseudo_labels]
    columns = ([each[-1] for each in told if each], [each.sure for each in known], [each.right for each in known])
    return (algorithm, *(mean_sd_text(MeanAndSd.of(column), 3) for column in columns))


PER_CLASS_HEADER: Cells = ("Class", "Samples", "Precision", "Recall", "F1")


def per_class_table(record: EvaluationRecord) -> list[Cells]:
    return [
        (row["class"], f"{row['samples']:,}", *(score_text(row[name]) for name in ("precision", "recall", "f1")))
        for row in record.per_class
    ]


def confusion_figure(classes: Sequence[str], scores: SampleScores) -> go.Figure:
    """Shares of each true class by colour, and how many samples they are as numbers."""
    counts = np.array(scores.confusion, np.int64)
    of_class = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shares, places = counts / of_class, np.arange(len(classes))
    labels = [escape(label if len(label) <= 24 else f"{label[:23]}…") for label in classes]
    hover = [
        [f"{labels[i]} taken for {labels[j]}: {counts[i, j]:,} ({shares[i, j]:.1%})" for j in places] for i in places
    ]
    shown = counts.astype(str) if len(classes) <= LABELLED_CLASSES else np.full(counts.shape, "")
    figure = go.Figure(
        go.Heatmap(
            z=shares,
            x=places,
            y=places,
            zmin=0,
            zmax=1,
            colorscale=[[0, "#eef4f8"], [1, PALETTE[0]]],  # opaque: the numbers are chosen to stand out on it
            text=shown,
            texttemplate="%{text}",
            customdata=hover,
            hovertemplate="%{customdata}<extra></extra>",
            showscale=False,
            xgap=1,
            ygap=1,
        )
    )
    ticks = {"tickvals": places, "ticktext": labels, "showgrid": False, "zeroline": False, "automargin": True}
    figure.update_xaxes(title="Predicted", **ticks)
    figure.update_yaxes(title="True", autorange="reversed", **ticks)
    return apply_layout(figure, height=min(max(300, 120 + 36 * len(classes)), 760))


# Clients --------------------------------------------------------------------------------------------------------------


def clients_section(groups: Groups) -> str:
    """Each client's scores; of one run all metrics, of several the one that decides, algorithm by algorithm."""
    runs = [run for group in groups.values() for run in group]
    if not any(run.evaluation and run.evaluation.by_client for run in runs):
        return ""
    header, rows = client_cells(runs[0]) if len(runs) == 1 else _compared(groups)
    left = len(rows) - CLIENTS_SHOWN
    more = [paragraph(f"{left:,} more clients are in evaluation.json.")] if left > 0 else []
    caption = "Each client's own test samples, at the end of training."
    matrices = _client_matrices(runs[0].evaluation) if len(runs) == 1 else ""
    return section("Scores by client", html_table(caption, header, rows[:CLIENTS_SHOWN]), *more, matrices)


def _client_matrices(record: EvaluationRecord | None) -> str:
    counted = [scores for scores in record.by_client if scores.confusion is not None] if record else []
    if not record or not counted or max(len(counted), len(record.classes)) > MATRICES_UP_TO:
        return ""
    figures = (
        figure_html(confusion_figure(record.classes, scores), f"{scores.name}: confusion matrix") for scores in counted
    )
    return side_by_side(*figures)


def client_cells(run: RunPlotData) -> tuple[Cells, list[Cells]]:
    """A header, and a line a client with its samples and every metric."""
    record = run.evaluation
    clients = record.by_client if record else []
    names = list(clients[0].metrics) if clients else []
    header = ("Client", "Samples", *names)
    lines = [
        (each.name, f"{each.samples:,}", *(score_text(each.metrics.get(name)) for name in names)) for each in clients
    ]
    return header, lines


def _compared(groups: Groups) -> tuple[Cells, list[Cells]]:
    metric = next(iter(groups.values()))[0].label.metric
    values: dict[str, dict[str, list[float | None]]] = {}
    for algorithm, runs in groups.items():
        for run in runs:
            for client in run.evaluation.by_client if run.evaluation else ():
                values.setdefault(client.name, {}).setdefault(algorithm, []).append(client.metrics.get(metric))
    header = (f"Client's {metric}", *groups)
    lines = [(name, *(_mean(found.get(algorithm)) for algorithm in groups)) for name, found in values.items()]
    return header, lines


def _mean(values: Sequence[float | None] | None) -> str:
    return MISSING if not values else mean_sd_text(MeanAndSd.of(values), decimals=4)
