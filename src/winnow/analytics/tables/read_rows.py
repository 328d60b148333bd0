"""The declared rows of a source: typed, with no column that the declaration does not name."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as arrow

from winnow.analytics.tables.declaration import SET_COLUMN, TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.tables.parse_table_section import parse_table
from winnow.analytics.tables.read_databases import read_database
from winnow.analytics.tables.read_files import UnknownColumnError, read_file
from winnow.analytics.tables.source import TableSource
from winnow.analytics.tables.typed_columns import typed_column
from winnow.core import DataError
from winnow.core.untrusted_text import one_line


def read_rows(source: TableSource, declaration: TableDeclaration) -> OwnerTable:
    """All rows of a source with absolute paths, as one owner's; the declaration has the column of its sets."""
    names = [name for name in declaration.columns if not (source.sets and name == SET_COLUMN)]
    return typed_table(declaration, _parts(source, names))


def read_site_table(name: str, section: Mapping[str, Any]) -> OwnerTable:
    """The rows of a site's own table. What it says goes to others: it names no column that is not declared."""
    declaration, source = parse_table(section, f"table {name}:")
    try:
        return read_rows(source, declaration)
    except UnknownColumnError as error:
        raise DataError(f"table {name} lacks column '{error.column}', which its site declares; run its check") from None


def typed_table(declaration: TableDeclaration, parts: Sequence[tuple[str, arrow.Table]]) -> OwnerTable:
    """One table out of raw parts, each with what messages call it; types that are not declared come from the first."""
    tables = []
    for where, raw in parts:
        columns, cells = {}, []
        for name, column in declaration.columns.items():
            typed, kind = typed_column(raw.column(name), column, name, where)
            columns[name] = column if kind is None else column.model_copy(update={"type": kind})
            cells.append(typed)
        declaration = declaration.model_copy(update={"columns": columns})
        tables.append(arrow.Table.from_arrays(cells, names=list(columns)))
    rows = arrow.concat_tables(tables, promote_options="permissive").combine_chunks()
    return OwnerTable(declaration=declaration, rows=rows)


def _parts(source: TableSource, names: Sequence[str]) -> list[tuple[str, arrow.Table]]:
    if source.url is not None and source.table is not None:
        return [(f"table {one_line(source.table)}", read_database(source.url, source.table, names))]
    if source.sets is not None:
        return [
            (one_line(place), _with_set(read_file(Path(place), names), name)) for name, place in source.sets.items()
        ]
    return [(one_line(place), read_file(Path(place), names)) for place in source.places]


def _with_set(rows: arrow.Table, name: str) -> arrow.Table:
    return rows.append_column(SET_COLUMN, arrow.array([name] * rows.num_rows, arrow.string()))
