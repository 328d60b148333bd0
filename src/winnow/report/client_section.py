"""Whose data look bad, for people who know the clients and not the method: the first section of a run's report."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TypeAlias

import plotly.graph_objects as go

from winnow.core.events import CANNOT_TELL, DIFFERENT, FINE, HARMFUL, SUSPECT, VERDICTS
from winnow.core.join_names import counted, listed
from winnow.core.untrusted_text import one_line
from winnow.report.client_cells import client_row_cells, client_score_text, policy_cells
from winnow.report.figures import apply_layout
from winnow.report.markup import (
    cards,
    figure_html,
    html_table,
    paragraph,
    searchable_table,
    section,
    subheading,
    verdict_card,
)
from winnow.report.plot_data import Groups, RunPlotData
from winnow.runs.client_table import (
    BEST_SHOWN,
    COLUMNS,
    SHOWN_UP_TO,
    WORST_SHOWN,
    ClientRow,
    ClientTable,
)

ALGORITHMS_UP_TO = 6
"""Of more algorithms than this, clients are not shown in a joint report."""
NAMES_UP_TO, NAMES_IN_SENTENCE = 40, 5
ROWS_UP_TO = 2_000
LINEAR_UP_TO, LOWEST_DRAWN = 5.0, 0.05
"""Higher scores are drawn on a logarithmic axis, which begins at the latter."""

VERDICT_COLOURS = {
    HARMFUL: "#d55e00",
    SUSPECT: "#e69f00",
    DIFFERENT: "#56b4e9",
    CANNOT_TELL: "#888888",
    FINE: "#009e73",
}
MEANINGS = {
    HARMFUL: "beyond the alarm threshold, and measured harm: talk to the owner",
    SUSPECT: "beyond the alarm threshold: have the owner look at it",
    DIFFERENT: "unlike the reference, without a sign of harm",
    CANNOT_TELL: "too few samples, or not assessed",
    FINE: "as expected of an honest client",
}
TITLES = tuple(column.capitalize() for column in COLUMNS)


WhyNotAssessed: TypeAlias = Callable[[str], str]
"""Says why a run with this configuration did not look at clients' data; empty where that is not known."""


def no_reason(config_text: str) -> str:
    """Not known."""
    return ""


def client_quality_section(groups: Groups, why_not_assessed: WhyNotAssessed) -> str:
    """Of one run all clients, or why none were assessed; of several, of each algorithm's first run, those that look
    bad.
    """
    runs = [run for group in groups.values() for run in group]
    if len(runs) == 1:
        return _section_of_one(runs[0], why_not_assessed)
    shown = {name: group[0] for name, group in groups.items() if group[0].clients is not None}
    if not shown or len(groups) > ALGORITHMS_UP_TO:
        return ""
    return section("Clients", *(piece for name, run in shown.items() for piece in _of_several(name, run)))


def _section_of_one(run: RunPlotData, why_not_assessed: WhyNotAssessed) -> str:
    if run.clients is not None:
        return section("Clients", *_of_one(run, run.clients))
    reason = why_not_assessed(run.config_text)
    return section("Clients", paragraph(f"Clients were not assessed: {reason}.")) if reason else ""


def _of_one(run: RunPlotData, table: ClientTable) -> list[str]:
    found = Counter(row.verdict for row in table.rows)
    told = [verdict_card(each, f"{found[each]:,}", MEANINGS[each]) for each in VERDICTS]
    return [
        paragraph(f"{_sentence(table)} {_how(table, run.false_alarms)}"),
        cards(told),
        figure_html(client_scores(table), _caption(table)),
        _table(table),
        *([_actions(table)] if table.actions else []),
    ]


def _of_several(algorithm: str, run: RunPlotData) -> list[str]:
    table = run.clients
    assert table is not None
    bad = [client_row_cells(row) for row in table.alarms]
    return [
        subheading(f"{algorithm}, seed {run.label.seed}"),
        paragraph(_sentence(table)),
        html_table("Clients that look bad.", TITLES, bad, texts=("Verdict", "Evidence")) if bad else "",
        figure_html(client_scores(table), _caption(table)),
    ]


def _sentence(table: ClientTable) -> str:
    headline = table.headline()
    names = listed([one_line(row.name) for row in table.alarms], NAMES_IN_SENTENCE)
    return f"{headline[0].upper()}{headline[1:]}{f': {names}' if names else ''}."


def _how(table: ClientTable, false_alarms: float | None) -> str:
    alarms = "" if not false_alarms else f" About {100 * false_alarms:g} % of honest clients exceed it by chance."
    return (
        f"Clients were {table.when_assessed}, by summaries that they made themselves: "
        "no sample left them. A score of 0 is expected of an honest client, and 1 is the alarm threshold."
        f"{alarms} A verdict is a reason to look, not a proof."
    )


def _table(table: ClientTable) -> str:
    rows = table.rows[:ROWS_UP_TO]
    left = len(table.rows) - len(rows)
    more = f" The worst {len(rows):,} of {len(table.rows):,}; winnow clients RUN --out FILE.csv has all." * (left > 0)
    folded = range(WORST_SHOWN, len(rows) - BEST_SHOWN) if len(rows) > SHOWN_UP_TO else range(0)
    return searchable_table(
        f"All clients, the worst first.{more}",
        TITLES,
        [client_row_cells(row) for row in rows],
        texts=("Evidence",),
        verdicts="Verdict",
        folded=folded,
    )


def _actions(table: ClientTable) -> str:
    header = ("Round", "Client", "What was done", "Why")
    return html_table("What the run did about it.", header, policy_cells(table), texts=header[1:])


def _caption(table: ClientTable) -> str:
    missing = sum(not math.isfinite(row.score) for row in table.rows)
    without = f"; {counted(missing, 'client')} without a score not drawn" if missing else ""
    return f"Score of each client, coloured by verdict; the line at 1 is the alarm threshold{without}"


def client_scores(table: ClientTable) -> go.Figure:
    """Scores by client, in the order of the table: by name where there is room for names."""
    rows = [row for row in table.rows if math.isfinite(row.score)]
    named, logarithmic = len(rows) <= NAMES_UP_TO, max((row.score for row in rows), default=0) > LINEAR_UP_TO
    place = {row.client: number for number, row in enumerate(rows)}
    figure = go.Figure()
    for verdict in VERDICTS:
        own = [row for row in rows if row.verdict == verdict]
        if own:
            figure.add_trace(_dots(own, place, named=named, logarithmic=logarithmic))
    line = {"dash": "dash", "width": 1.5, "color": "#888888"}
    scale = {"type": "log", "tickvals": TICKS, "ticktext": [f"{tick:g}" for tick in TICKS]} if logarithmic else {}
    if named:
        figure.add_vline(x=1, line=line)
        figure.update_xaxes(title="Score", **scale)
        names = [escape(_short(row.name)) for row in rows]
        figure.update_yaxes(
            tickvals=list(range(len(rows))),
            ticktext=names,
            autorange="reversed",
            automargin=True,
            showgrid=False,
            zeroline=False,
        )
        return apply_layout(figure, height=150 + 26 * len(rows))
    figure.add_hline(y=1, line=line)
    figure.update_yaxes(title="Score", **scale)
    figure.update_xaxes(title="Clients, the worst first", showgrid=False, zeroline=False)
    return apply_layout(figure, height=380)


TICKS = (0.05, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


def _dots(rows: Sequence[ClientRow], place: Mapping[int, int], *, named: bool, logarithmic: bool) -> go.Scatter:
    scores = [max(row.score, LOWEST_DRAWN) if logarithmic else row.score for row in rows]
    places = [place[row.client] for row in rows]
    told = [
        f"{escape(_short(row.name))}: {client_score_text(row.score)}, {escape(one_line(row.verdict))}" for row in rows
    ]
    return go.Scatter(
        x=scores if named else places,
        y=places if named else scores,
        customdata=told,
        hovertemplate="%{customdata}<extra></extra>",
        name=rows[0].verdict,
        mode="markers",
        marker={"color": VERDICT_COLOURS[rows[0].verdict], "size": 13 if named else 8},
    )


def _short(name: str) -> str:
    line = one_line(name)
    return line if len(line) <= 40 else f"{line[:39]}…"
