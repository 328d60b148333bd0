"""Runs a statement that this package derived on an owner's rows."""

from collections.abc import Mapping, Sequence

import duckdb
import pyarrow as arrow

from winnow.analytics.sql.duckdb_engine import add_table, connection, quoted
from winnow.analytics.sql.relations import Lookup
from winnow.analytics.sql.statement_limits import limited_rows
from winnow.analytics.sql.table_sample import TableSample
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import DataError
from winnow.core.untrusted_text import one_line


def execute_at_owner(
    table: OwnerTable,
    declarations: Mapping[str, TableDeclaration],
    sql: str,
    sample: TableSample | None = None,
    lookups: Sequence[Lookup] = (),
    multiples: Sequence[Lookup] = (),
    minimum: int = 1,
) -> arrow.Table:
    """What a statement selects of an owner's rows, or of a part of those of its first table. DataError if columns of
    `lookups` do not tell rows apart, or if it is too much (`statement_limits.py`).
    """
    (first, declaration), *others = declarations.items()
    rows = table.rows
    if sample is not None and sample.method == "BERNOULLI":
        rows = rows.filter(arrow.array(sample.uniform(sql, len(table))))
    try:
        with connection() as opened:
            add_table(opened, first, declaration, rows)
            for name, declared in others:
                add_table(opened, name, declared, table.beside[name].rows)
            for each in lookups:
                _check_lookup(opened, each)
            own = {first: rows.num_rows} | {name: len(table.beside[name]) for name, _ in others}
            return limited_rows(opened, sql, own, multiples, minimum)
    except MemoryError:
        raise DataError("the memory here is not enough for the statement's rows; choose fewer") from None
    except duckdb.Error as error:  # its text may quote a cell
        raise DataError(f"DuckDB cannot compute the statement here ({type(error).__name__})") from None


def _check_lookup(opened: duckdb.DuckDBPyConnection, lookup: Lookup) -> None:
    columns = ", ".join(map(quoted, lookup.columns)) or "()"
    found = opened.sql(f"SELECT 1 FROM {quoted(lookup.table)} GROUP BY {columns} HAVING COUNT(*) > 1").fetchall()  # noqa: S608
    if found:
        name = one_line(lookup.table)
        raise DataError(
            f"{name} in a subquery with joins could count one row often: several rows of it have the same "
            f"{' and '.join(map(one_line, lookup.columns)) or 'place in the join'}; write the join in FROM itself, "
            f"without the subquery, or ON with columns that tell rows of {name} apart"
        )
