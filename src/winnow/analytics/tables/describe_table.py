"""A table in a line for its own operator: what was read, and which cells do not fit what is declared."""

import numpy as np

from winnow.analytics.tables.compare_declarations import declaration_digest
from winnow.analytics.tables.declaration import ColumnDeclaration
from winnow.analytics.tables.owner_table import OTHER, OwnerTable
from winnow.core.join_names import counted, listed

COLUMNS_SHOWN = 20
DIGEST_SHOWN = 12


def described_table(table: OwnerTable) -> str:
    """Rows, a word on every column, and a digest by which operators can compare declarations before any job does."""
    columns = [f"{name} ({_column(table, name, each)})" for name, each in table.declaration.columns.items()]
    digest = declaration_digest(table.declaration)[:DIGEST_SHOWN]
    return f"{counted(len(table), 'row')}; {listed(columns, COLUMNS_SHOWN)}; declaration {digest}"


def _column(table: OwnerTable, name: str, column: ColumnDeclaration) -> str:
    parts: list[str] = [column.level, column.type or "all cells are missing"]
    missing = table.rows.column(name).null_count
    if missing and column.type is not None:
        parts.append(f"{missing:,} missing")
    if column.bounds is not None:
        plain = ColumnDeclaration(level=column.level, type=column.type)
        unbounded = table.declaration.model_copy(update={"columns": {name: plain}, "unit": None, "rows": None})
        numbers = OwnerTable(declaration=unbounded, rows=table.rows).numbers(name)
        if outside := int(np.sum((numbers < column.bounds[0]) | (numbers > column.bounds[1]))):
            parts.append(f"{outside:,} outside of its bounds")
    if column.values is not None and (other := int(np.sum(table.codes(name) == OTHER))):
        parts.append(f"{other:,} of a value that is not listed")
    return ", ".join(parts)
