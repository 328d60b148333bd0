"""A site's own PostgreSQL chooses the rows and columns that a statement needs; DuckDB computes on what comes out.

The statement that runs there is derived at the site. It has the columns that are named, and of every condition what
PostgreSQL evaluates exactly as DuckDB does. DuckDB evaluates all conditions again, so rows too many change nothing.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as arrow
from sqlglot import exp

from winnow.analytics.sql.duckdb_engine import MICROSECONDS_A_DAY
from winnow.analytics.sql.parse_sql import parse_sql
from winnow.analytics.sql.postgres_conditions import postgres_condition
from winnow.analytics.sql.postgres_values import Translated, float_text, quoted_text, whole_text
from winnow.analytics.sql.sql_text import conjuncts
from winnow.analytics.tables.declaration import ColumnDeclaration, TableDeclaration
from winnow.analytics.tables.read_postgresql import PostgresTable, identifier, open_postgresql
from winnow.analytics.tables.typed_columns import ARROW_TYPES
from winnow.core import DataError
from winnow.core.untrusted_text import one_line

SPACES = "".join(chr(code) for code in range(1, 0x3001) if chr(code).isspace())
"""What text is read without, at either end."""
MAX_PRECISION = 300
"""Numbers of so many digits are floating-point numbers, too."""
NTH = "winnow_nth"


def select_rows(
    url: str, table: str, declaration: TableDeclaration, sql: str, name: str, *, noisy: bool
) -> arrow.Table | None:
    """The rows of a table that a statement, which calls it `name`, may need; columns that it does not need are empty.

    None where they have to be read as a whole: only they tell what type a column has, or all owners must have the same.
    """
    if declaration.replicated or any(column.known_type is None for column in declaration.columns.values()):
        return None
    tree = parse_sql(sql)
    with open_postgresql(url, table, list(declaration.columns)) as opened:
        named = {each.name.lower() for each in tree.find_all(exp.Identifier)}
        if noisy and declaration.unit is not None:
            named.add(declaration.unit.lower())
        columns = [each for each, one in declaration.columns.items() if each.lower() in named or one.together]
        rows = opened.fetch(columns, _rest(opened, declaration, tree, name, noisy=noisy))
        if not rows.num_rows and not opened.has_rows():
            raise DataError(f"table {one_line(table)} has no rows")
    empty = {each: column.known_type for each, column in declaration.columns.items() if each not in columns}
    cells = {each: rows.column(each) for each in columns}
    cells |= {each: arrow.nulls(rows.num_rows, ARROW_TYPES[kind]) for each, kind in empty.items() if kind}
    return arrow.table({each: cells[each] for each in declaration.columns})


def _rest(opened: PostgresTable, declaration: TableDeclaration, tree: exp.Select, name: str, *, noisy: bool) -> str:
    """FROM and WHERE. A sample, and a limit of rows a unit, are taken of all rows, so there is no condition. In a join
    there is none either: if another owner has the other table, it learns which identifiers all rows have in common.
    """
    if noisy or tree.find(exp.TableSample, exp.Join) or opened.encoding != "UTF8":
        return f"FROM {opened.quoted}"
    condition = _needed_rows(tree, name, _cells(opened, declaration))
    if condition is None:
        return f"FROM {opened.quoted}"
    if not tree.find(exp.Group):
        return f"FROM {opened.quoted} WHERE {condition}"
    public = [
        each
        for each, column in declaration.columns.items()
        if column.level == "public" and any(each.lower() == one.name.lower() for one in tree.find_all(exp.Column))
    ]
    if not public:
        return f"FROM {opened.quoted} WHERE {condition}"
    # which public values there are is told of all rows: one row of each comes along
    divided = ", ".join(f"{identifier(each)}{_collation(opened.types[each])}" for each in public)
    numbered = f"SELECT *, row_number() OVER (PARTITION BY {divided}) AS {NTH} FROM {opened.quoted}"  # noqa: S608
    return f"FROM ({numbered}) AS numbered WHERE {NTH} = 1 OR {condition}"


def _needed_rows(tree: exp.Select, name: str, cells: Mapping[str, Translated]) -> str | None:
    """A condition that every row meets which some SELECT reads; None if there is none."""
    needed = list[str]()
    for table in (each for each in tree.find_all(exp.Table) if each.name.lower() == name.lower()):
        select = table.find_ancestor(exp.Select)
        where = None if select is None else select.args.get("where")
        if select is None or where is None or any(join.side for join in select.args.get("joins") or ()):
            return None
        alone = not select.args.get("joins")
        known = (postgres_condition(each, _of(table, cells, alone=alone)) for each in conjuncts(where.this))
        met = [each for each in known if each is not None]
        if not met:
            return None
        needed.append(f"({' AND '.join(met)})")
    return " OR ".join(dict.fromkeys(needed)) or None


def _of(table: exp.Table, cells: Mapping[str, Translated], *, alone: bool) -> Callable[[exp.Column], Translated | None]:
    """The columns of one mention of the table. Without its name a column is meant where no other table is beside it."""
    alias = table.alias_or_name.lower()
    return lambda column: (
        cells.get(column.name.lower()) if column.table.lower() == alias or (alone and not column.table) else None
    )


def _cells(opened: PostgresTable, declaration: TableDeclaration) -> dict[str, Translated]:
    """Columns as DuckDB sees them: typed and clipped to bounds."""
    found = {each: _cell(each, column, opened.types[each]) for each, column in declaration.columns.items()}
    return {each.lower(): cell for each, cell in found.items() if cell is not None}


def _cell(name: str, column: ColumnDeclaration, kind: Any) -> Translated | None:
    from sqlalchemy import types  # noqa: PLC0415 - an extra

    cell, wanted = identifier(name), column.known_type
    if wanted == "boolean" and isinstance(kind, types.Boolean):
        return Translated(sql=cell, kind="boolean")
    if wanted == "text" and isinstance(kind, types.String | types.Uuid):
        trimmed = f'btrim(CAST({cell} AS text) COLLATE "C", {quoted_text(SPACES)})'
        return Translated(sql=f"NULLIF({trimmed}, '')", kind="text")
    if wanted == "integer" and isinstance(kind, types.Integer):
        return _clipped(f"CAST({cell} AS bigint)", "integer", column)
    if wanted == "number" and _is_float(kind):
        return _clipped(f"NULLIF(CAST({cell} AS float8), CAST('NaN' AS float8))", "number", column)
    if wanted == "date" and isinstance(kind, types.Date | types.DateTime):
        zoned = isinstance(kind, types.DateTime) and kind.timezone
        when = f"({cell} AT TIME ZONE 'UTC')" if zoned else f"CAST({cell} AS timestamp)"
        return _clipped(f"CASE WHEN isfinite({when}) THEN {when} END", "date", column)
    return None


def _is_float(kind: Any) -> bool:
    """Whether PostgreSQL makes the same floating-point number of it as its text does; of `real` it does not."""
    from sqlalchemy import types  # noqa: PLC0415

    if isinstance(kind, types.Integer | types.Double):
        return True
    return (
        isinstance(kind, types.Numeric)
        and not isinstance(kind, types.Float)
        and 0 < (kind.precision or 0) <= MAX_PRECISION
    )


def _clipped(cell: str, kind: Any, column: ColumnDeclaration) -> Translated | None:
    if column.bounds is None:
        return Translated(sql=f"({cell})", kind=kind)
    low, high = column.bounds
    if kind == "date":
        try:
            least, most = (_moment(days) for days in column.bounds)
        except OverflowError:
            return None
    elif kind == "integer":
        if not (low.is_integer() and high.is_integer()):
            return None
        least, most = whole_text(int(low)), whole_text(int(high))
    else:
        least, most = float_text(low), float_text(high)
    sql = f"(CASE WHEN {cell} < {least} THEN {least} WHEN {cell} > {most} THEN {most} ELSE {cell} END)"
    return Translated(sql=sql, kind=kind, low=low, high=high)


def _moment(days: float) -> str:
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=round(days * MICROSECONDS_A_DAY))
    return f"CAST('{when.replace(tzinfo=None).isoformat(sep=' ')}' AS timestamp)"


def _collation(kind: Any) -> str:
    from sqlalchemy import types  # noqa: PLC0415

    return ' COLLATE "C"' if isinstance(kind, types.String) and not isinstance(kind, types.Enum) else ""
