"""How much an owner's DuckDB may make of its rows for a statement.

Tables that a join multiplies by count for every row of a unit. Whether one unit may have too many rows is decided
without conditions; so where a statement selects too many, they belong to as many units as the minimum, at least, and
the error does not tell whether a condition holds for somebody.
"""

from collections.abc import Mapping, Sequence
from math import prod

import duckdb
import pyarrow as arrow

from winnow.analytics.sql.duckdb_engine import quoted
from winnow.analytics.sql.relations import Lookup
from winnow.core import DataError

MAX_ROWS = 20_000_000
MAX_CELLS = 100_000_000
MAX_PUBLIC_VALUES = 5_000
"""That an owner may have."""


def limited_rows(
    opened: duckdb.DuckDBPyConnection, sql: str, own: Mapping[str, int], multiples: Sequence[Lookup], minimum: int
) -> arrow.Table:
    """What a statement selects; DataError if that is too much. `own` is how many rows each table has: as many as the
    largest are never too many.
    """
    selected = opened.sql(sql)
    most = min(MAX_ROWS, MAX_CELLS // max(len(selected.columns), 1))
    if prod(_most_rows(opened, each) for each in multiples) * minimum > most:
        raise DataError(
            f"the statement joins one row with too many others, by {_named(multiples)}: it could have more than "
            f"{most:,} rows here; join fewer tables, or on columns that are equal"
        )
    most = max(most, *own.values())
    rows = selected.limit(most + 1).to_arrow_table()
    if rows.num_rows > most:
        raise DataError(f"the statement has more than {most:,} rows here; choose fewer, or ask for less of each")
    return rows


def _named(multiples: Sequence[Lookup]) -> str:
    return ", ".join(dict.fromkeys(each.table for each in multiples))


def _most_rows(opened: duckdb.DuckDBPyConnection, lookup: Lookup) -> int:
    """Of a table, that have the same values in these columns."""
    columns = ", ".join(map(quoted, lookup.columns)) or "()"
    counts = f"SELECT COUNT(*) AS n FROM {quoted(lookup.table)} GROUP BY {columns}"  # noqa: S608 - names are quoted
    (found,) = opened.sql(f"SELECT MAX(n) FROM ({counts})").fetchall()  # noqa: S608
    return max(int(found[0] or 0), 1)
