"""The answer to a statement as a terminal shows it, and its cells for others."""

from rich.table import Table

from winnow.analytics.sql.query_answer import QueryAnswer
from winnow.terminal_tables import table


def answer_table(answer: QueryAnswer) -> Table:
    return table(answer.told_columns(), answer_cells(answer), numbers=number_columns(answer))


def answer_cells(answer: QueryAnswer) -> list[list[str]]:
    names = answer.told_columns()
    return [[_text(row.get(name)) for name in names] for row in answer.told_rows()]


def number_columns(answer: QueryAnswer) -> list[str]:
    rows = answer.told_rows()
    names = answer.told_columns()
    return [name for name in names if all(isinstance(row.get(name), int | float | None) for row in rows)]


def _text(value: object) -> str:
    """Seven digits; whole numbers as they are."""
    if value is None:
        return "–"
    return f"{value:.7g}" if isinstance(value, float) else str(value)
