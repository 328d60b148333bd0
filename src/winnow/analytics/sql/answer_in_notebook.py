"""The answer to a statement as a notebook shows it: a table, and a chart of numbers by group."""

import plotly.graph_objects as go

from winnow.analytics.sql.answer_table import answer_cells, number_columns
from winnow.analytics.sql.query_answer import QueryAnswer
from winnow.analytics.sql.query_page import answer_bars, drawn_columns
from winnow.core import ConfigError, suggest
from winnow.core.join_names import counted
from winnow.report.markup import html_table, paragraph
from winnow.report.notebook_plots import for_notebook


def answer_html(answer: QueryAnswer) -> str:
    names, numbers = answer.told_columns(), number_columns(answer)
    texts = [name for name in names if name not in numbers]
    shown = html_table(counted(len(answer.rows), "row"), names, answer_cells(answer), texts=texts)
    return shown + paragraph(" ".join(answer.notes()))


def answer_figure(answer: QueryAnswer, column: str | None = None) -> go.Figure:
    """A bar for each row, named by its columns that are no numbers, or by the first of several numbers."""
    _, values = drawn_columns(answer)
    if not answer.rows or not values:
        raise ConfigError("plot: the answer has no rows with numbers to draw")
    if column is not None and column not in values:
        raise ConfigError(f"plot: {column!r} is not a column of numbers to draw; {suggest(column, values)}")
    return for_notebook(answer_bars(answer, values[0] if column is None else column))
