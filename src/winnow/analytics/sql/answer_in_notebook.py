"""The answer to a statement as a notebook shows it: a table, and a chart of numbers by group."""

from html import escape
from numbers import Real

import plotly.graph_objects as go

from winnow.analytics.sql.answer_table import answer_cells, number_columns
from winnow.analytics.sql.query_answer import QueryAnswer
from winnow.core import ConfigError, suggest
from winnow.core.join_names import counted
from winnow.report.colours import colour, translucent
from winnow.report.figures import apply_layout
from winnow.report.markup import html_table, paragraph
from winnow.report.notebook_plots import for_notebook

MAX_GROUPS = 200
"""Bars of a chart; an answer may have more rows."""


def answer_html(answer: QueryAnswer) -> str:
    names, numbers = answer.told_columns(), number_columns(answer)
    texts = [name for name in names if name not in numbers]
    shown = html_table(counted(len(answer.rows), "row"), names, answer_cells(answer), texts=texts)
    return shown + paragraph(" ".join(answer.notes()))


def answer_figure(answer: QueryAnswer, column: str | None = None) -> go.Figure:
    """A bar for each row, named by its columns that are no numbers, or by the first of several numbers."""
    numbers, rows = number_columns(answer), answer.rows[:MAX_GROUPS]
    told = [name for name in answer.columns if name in numbers]
    maps = {name for row in rows for name, value in row.items() if isinstance(value, dict)}  # histograms
    labels = [name for name in answer.columns if name not in numbers and name not in maps] or told[: len(told) > 1]
    values = [name for name in told if name not in labels]
    if not rows or not values:
        raise ConfigError("plot: the answer has no rows with numbers to draw")
    if column is not None and column not in values:
        raise ConfigError(f"plot: {column!r} is no column of numbers to draw; {suggest(column, values)}")
    shown, ink = values[0] if column is None else column, colour(0)
    names = [escape(", ".join(str(row[name]) for name in labels)) or "all rows" for row in rows]
    errors = [row.get(shown) for row in answer.errors[:MAX_GROUPS]]
    bars = go.Bar(
        x=names,
        y=[_number(row[shown]) for row in rows],
        error_y={"array": errors} if any(error is not None for error in errors) else None,
        marker={"color": translucent(ink, 0.8), "line": {"color": ink, "width": 1}},
    )
    figure = go.Figure(bars)
    figure.update_xaxes(title=escape(", ".join(labels)), type="category", automargin=True)
    figure.update_yaxes(title=escape(shown))
    return for_notebook(apply_layout(figure, height=320))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, Real) else None
