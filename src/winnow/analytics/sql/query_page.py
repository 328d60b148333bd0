"""The page of an answer to a statement: the statement, its answer as charts and a table, and how it came about."""

from html import escape
from numbers import Real

import plotly.graph_objects as go

from winnow.analytics.sql.answer_table import answer_cells, number_columns
from winnow.analytics.sql.query_answer import QueryAnswer
from winnow.core.join_names import counted
from winnow.report.colours import colour, translucent
from winnow.report.figures import apply_layout
from winnow.report.markup import bullet_list, collapsible, figure_html, html_table, section, side_by_side

MAX_GROUPS = 200
"""Bars of a chart; an answer may have more rows."""
MAX_CHARTS, MAX_ROWS = 4, 2_000


def query_parts(answer: QueryAnswer) -> tuple[str, str, str]:
    """The page's title, the line below it, and its sections."""
    names, rows = answer.told_columns(), answer_cells(answer)
    texts = [name for name in names if name not in number_columns(answer)]
    caption = counted(len(rows), "row") + (f", of which {MAX_ROWS:,} are shown" if len(rows) > MAX_ROWS else "")
    pieces = [
        section("Statement", f"<pre>{escape(answer.answer['sql'])}</pre>"),
        section("Answer", _charts(answer), html_table(caption, names, rows[:MAX_ROWS], texts=texts)),
        section("Notes", bullet_list(answer.notes())) if answer.notes() else "",
        section("How it was answered", collapsible("Steps, and who learns what", answer.explain())),
    ]
    title = f"Query of {answer.answer['table']}"
    return title, f"{counted(len(answer.answer['owners']), 'owner')} answered.", "".join(pieces)


def _charts(answer: QueryAnswer) -> str:
    """One for each column of numbers: a count and a mean cost have no scale in common."""
    labels, values = drawn_columns(answer)
    if len(answer.rows) < 2:
        return ""
    by = f" by {', '.join(labels)}" if labels else ""
    return side_by_side(*(figure_html(answer_bars(answer, name), f"{name}{by}") for name in values[:MAX_CHARTS]))


def drawn_columns(answer: QueryAnswer) -> tuple[list[str], list[str]]:
    """The columns that name rows: those that are no numbers, or the first of several numbers; and those to draw."""
    numbers = number_columns(answer)
    told = [name for name in answer.columns if name in numbers]
    maps = {name for row in answer.rows for name, value in row.items() if isinstance(value, dict)}  # histograms
    labels = [name for name in answer.columns if name not in numbers and name not in maps] or told[: len(told) > 1]
    return labels, [name for name in told if name not in labels]


def answer_bars(answer: QueryAnswer, column: str) -> go.Figure:
    """A bar for each row, with its standard error if there is one."""
    labels, rows, ink = drawn_columns(answer)[0], answer.rows[:MAX_GROUPS], colour(0)
    names = [escape(", ".join(str(row[name]) for name in labels)) or "all rows" for row in rows]
    errors = [row.get(column) for row in answer.errors[:MAX_GROUPS]]
    bars = go.Bar(
        x=names,
        y=[_number(row[column]) for row in rows],
        error_y={"array": errors} if any(error is not None for error in errors) else None,
        marker={"color": translucent(ink, 0.8), "line": {"color": ink, "width": 1}},
    )
    figure = go.Figure(bars)
    figure.update_xaxes(title=escape(", ".join(labels)), type="category", automargin=True)
    figure.update_yaxes(title=escape(column))
    return apply_layout(figure, height=320)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, Real) else None
