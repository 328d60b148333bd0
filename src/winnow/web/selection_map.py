"""Who was selected when: a heat map of clients by rounds."""

from collections.abc import Iterable
from html import escape

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from winnow.core import AnyEvent, Selected
from winnow.report.colours import PALETTE
from winnow.report.figures import HEAT_ROWS_UP_TO, NAMES_UP_TO, apply_layout, set_round_axis
from winnow.report.plot_data import ParticipationCounts

COLUMNS_UP_TO, GAPS_UP_TO = 200, 60
"""Of more rounds than this, neighbouring ones share a column."""


def selection_map(events: Iterable[AnyEvent], clients: ParticipationCounts) -> go.Figure | None:
    """How often each client was selected in some rounds; of many clients, the mean of those of a condition.

    Selections are counted by row and not by client: a million clients have one row a condition.
    """
    selected = [event for event in events if isinstance(event, Selected)]
    if not selected or not len(clients.of_client):
        return None
    row_of, names = _rows(clients)
    if len(names) > HEAT_ROWS_UP_TO:
        return None
    first, last = min(event.round for event in selected), max(event.round for event in selected)
    width = -(-(last - first + 1) // COLUMNS_UP_TO)
    counts = np.zeros((len(names), (last - first) // width + 1))
    for event in selected:
        np.add.at(counts[:, (event.round - first) // width], row_of[event.clients], event.counts)
    rows = counts / width / np.bincount(row_of, minlength=len(names))[:, None]
    rounds = first + width * np.arange(counts.shape[1])
    figure = go.Figure(_heat(rows, rounds, names, width))
    figure.update_xaxes(showgrid=False)
    set_round_axis(figure)
    shown = names if len(names) <= NAMES_UP_TO else [""] * len(names)
    figure.update_yaxes(
        tickvals=list(range(len(names))), ticktext=shown, autorange="reversed", showgrid=False, automargin=True
    )
    return apply_layout(figure, height=min(900, 150 + 20 * len(names)) if len(names) > 4 else 240)


def _rows(clients: ParticipationCounts) -> tuple[NDArray[np.int64], list[str]]:
    """The row of each client, and what rows are called."""
    if len(clients.of_client) <= HEAT_ROWS_UP_TO:
        return np.argsort(clients.order), [escape(clients.client_name(client)) for client in clients.order.tolist()]
    present, row_of = np.unique(clients.of_client, return_inverse=True)
    return row_of, [escape(clients.labels[condition]) for condition in present]


def _heat(rows: NDArray[np.float64], rounds: NDArray[np.int64], names: list[str], width: int) -> go.Heatmap:
    called = np.broadcast_to(np.array(names)[:, None], rows.shape)
    when = "round %{x}" if width == 1 else f"{width} rounds from %{{x}}"
    return go.Heatmap(
        z=rows,
        x=rounds,
        customdata=called,
        hovertemplate=f"%{{customdata}}<br>{when}<br>selected %{{z:.3g}} times a round<extra></extra>",
        colorscale=[[0, "rgba(136, 136, 136, 0.08)"], [1, PALETTE[0]]],
        zmin=0,
        showscale=False,
        xgap=1 if rows.shape[1] <= GAPS_UP_TO else 0,
        ygap=1,
    )
