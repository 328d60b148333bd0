"""How much is read of a database: an owner computes with its rows in memory, and a view may have any number of them."""

from winnow.core import DataError

MAX_CELLS = 1_000_000_000
"""About 8 GB of numbers. A join reads all rows of its tables, whatever its conditions say."""


def most_rows(columns: int) -> int:
    return MAX_CELLS // max(columns, 1)


def check_rows(rows: int, columns: int, where: str) -> None:
    """DataError if so many rows are too many."""
    if rows > (most := most_rows(columns)):
        raise DataError(
            f"{where} has more than {most:,} rows of the {columns} columns that are needed, too many to compute with; "
            "declare fewer columns, or a view with fewer rows"
        )
