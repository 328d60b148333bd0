"""The answer to a statement as a terminal shows it."""

from rich.table import Table

from winnow.analytics.sql.query_answer import QueryAnswer
from winnow.terminal_tables import table


def answer_table(answer: QueryAnswer) -> Table:
    rows, names = answer.told_rows(), answer.told_columns()
    numbers = [name for name in names if all(isinstance(row.get(name), int | float | None) for row in rows)]
    return table(names, [[_text(row.get(name)) for name in names] for row in rows], numbers=numbers)


def _text(value: object) -> str:
    """Seven digits; whole numbers as they are."""
    if value is None:
        return "–"
    return f"{value:.7g}" if isinstance(value, float) else str(value)
