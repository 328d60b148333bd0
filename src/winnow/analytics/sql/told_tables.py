"""A table that some owners have and others lack, of which a statement reads public columns alone: hospitals or stations
with their places, to which rows of other owners are near.

Its rows are told to all parties, as values of public columns in GROUP BY are. From then on everybody has them, as if
the table were replicated, and each owner joins them with its own rows.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as arrow
from sqlglot import exp

from winnow.analytics.program import Compare, CountDistinct, Mix, Program, Sum
from winnow.analytics.question import MergedTerms
from winnow.analytics.sql.duckdb_engine import ARROW_TYPES, TYPES, add_table, asked_name, connection, kind_of, quoted
from winnow.analytics.sql.execute_at_owner import execute_at_owner
from winnow.analytics.sql.identity_cache import IdentityCache
from winnow.analytics.sql.join_links import equalities
from winnow.analytics.sql.owner_rows import Group
from winnow.analytics.sql.parse_sql import parse_sql
from winnow.analytics.sql.public_values import open_counted_values
from winnow.analytics.sql.spatial_functions import DISTANCE
from winnow.analytics.sql.sql_text import written_conditions
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import ConfigError, DataError

if TYPE_CHECKING:
    from winnow.analytics.question import Question

T = TypeVar("T")
MAX_TOLD_ROWS = 5_000


@dataclass(frozen=True, kw_only=True)
class ToldTable:
    """`declaration` has the columns that are told, and calls the table replicated."""

    name: str
    owners: tuple[str, ...]
    declaration: TableDeclaration

    @property
    def sql(self) -> str:
        columns = ", ".join(f"CAST({quoted(asked_name(each))} AS VARCHAR)" for each in self.declaration.columns)
        return f"SELECT {columns} FROM {quoted(self.name)}"  # noqa: S608 - names are quoted


def told_tables(question: "Question", sql: str, terms: MergedTerms) -> tuple[ToldTable, ...]:
    """Those of a statement's tables whose rows all parties have to know; none where owners can do without.

    Two owners who join by a key match it, and tell no rows. Of tables that all owners have, one is told where rows are
    joined by distance: a person may be near the place that another owner has.
    """
    declared = terms.tables(question.tables)
    lacked = [name for name in question.tables if len(terms.holders[name]) < len(terms.owners)]
    tree = parse_sql(sql)
    if _has_key(tree) and (not lacked or len(terms.owners) == 2):
        return ()
    divided = [name for name, each in declared.items() if not each.replicated]
    told: list[ToldTable] = []
    for name in lacked or (divided if _by_place(tree, declared) else []):
        columns = _public_columns(tree, name, declared)
        if columns and len(told) < len(divided) - 1:
            shown = TableDeclaration(
                columns={each: declared[name].columns[each].model_copy(update={"together": None}) for each in columns},
                replicated=True,
            )
            told.append(ToldTable(name=name, owners=terms.holders[name], declaration=shown))
    kept = {terms.holders[name] for name in divided if name not in [each.name for each in told]}
    if told and len(kept) == 1 and len(next(iter(kept))) < terms.least_owners and not terms.per_owner:
        raise ConfigError(
            f"an owner answers where {terms.least_owners} owners take part at least; those with rows that are counted "
            f"are {len(next(iter(kept)))}"
        )
    return tuple(told) if len(kept) == 1 else ()


def _by_place(tree: exp.Select, declared: Mapping[str, TableDeclaration]) -> bool:
    """Whether rows of two tables are joined by their distance."""
    tables = {each.alias_or_name.lower(): each.name.lower() for each in tree.find_all(exp.Table)}
    columns = {name.lower(): {one.lower() for one in each.columns} for name, each in declared.items()}

    def read(node: exp.Expr) -> set[str]:
        return {
            tables.get(column.table.lower(), column.table)
            or next((name for name, own in columns.items() if column.name.lower() in own), "")
            for column in node.find_all(exp.Column)
        }

    return any(len(read(node)) > 1 for node in tree.walk() if DISTANCE in node.meta)


def _has_key(tree: exp.Select) -> bool:
    pairs = (pair for written in written_conditions(tree) for pair in equalities(written))
    using = any(join.args.get("using") for join in tree.args.get("joins") or ())
    return using or any(one.table != other.table for one, other in pairs)


def _public_columns(tree: exp.Select, name: str, declared: Mapping[str, TableDeclaration]) -> list[str]:
    """The columns of a table that a statement may read; none if one of them is not public."""
    aliases = {each.alias_or_name.lower() for each in tree.find_all(exp.Table) if each.name.lower() == name.lower()}
    others = {one.lower() for other, each in declared.items() if other != name for one in each.columns}
    everything = any(
        isinstance(each.parent, exp.Select) and each.parent is not tree for each in tree.find_all(exp.Star)
    )
    read = [
        column.name.lower()
        for column in tree.find_all(exp.Column)
        if column.table.lower() in aliases or column.name.lower() not in others
    ]
    named = {each.name.lower() for each in tree.find_all(exp.Column)}
    columns = declared[name].columns
    if any(columns[each].level != "public" for each in columns if each.lower() in read):
        return []
    return [each for each in columns if columns[each].level == "public" and (everything or each.lower() in named)]


def told_terms(terms: MergedTerms, tables: tuple[str, ...], told: tuple[ToldTable, ...]) -> MergedTerms:
    """With these tables as replicated ones."""
    shown = {each.name: each.declaration for each in told}
    declared = {name: shown.get(name, each) for name, each in terms.tables(tables).items()}
    return replace(terms, declaration=declared.pop(tables[0]), beside=declared)


def with_told_tables(program: Program[T], terms: MergedTerms, told: tuple[ToldTable, ...]) -> Program[T]:
    """A program about all tables, after those that are told; `terms` call these replicated."""
    names = tuple(terms.holders)
    everybody = _AllTables(names, terms)
    for each in told:
        counted = yield from open_counted_values(partial(everybody.rows_of, each), each.name)
        everybody.told[each.name] = _told_rows(each, counted)
    try:
        step = next(program)
        while True:
            assert isinstance(step, Sum | Compare | CountDistinct | Mix)
            opened = yield replace(step, local=_over(everybody, step.local))  # type: ignore[arg-type]
            step = program.send(opened)
    except StopIteration as stop:
        answer: T = stop.value
        return answer


def _over(everybody: "_AllTables", local: Callable[[OwnerTable], Any]) -> Callable[[OwnerTable], Any]:
    return lambda table: local(everybody.all_of(table))


def _told_rows(told: ToldTable, counted: list[tuple[Group, int]]) -> OwnerTable:
    """As owners sent them: each cell is a text, and what is none of its column's type is NULL."""
    width = len(told.declaration.columns)
    if any(len(group) != width + 1 for group, _ in counted):
        raise DataError(f"{told.name}: an owner sent a row that has not the columns of the table")
    if any(times > len(told.owners) for _, times in counted):  # equal rows of one owner are numbered
        raise DataError(f"{told.name}: an owner sent a row more often than there are owners who have the table")
    if sum(times for _, times in counted) > MAX_TOLD_ROWS:
        raise DataError(f"{told.name} has more than {MAX_TOLD_ROWS:,} rows; no more can be told to all parties")
    rows = [group[:-1] for group, times in counted for _ in range(times)]
    texts = {
        name: arrow.array([row[place] for row in rows], arrow.string())
        for place, name in enumerate(told.declaration.columns)
    }
    typed = ", ".join(
        f"TRY_CAST({quoted(name)} AS {TYPES[kind_of(column)]}) AS {quoted(name)}"
        for name, column in told.declaration.columns.items()
    )
    with connection() as opened:
        opened.register("told_rows", arrow.table(texts))
        found = opened.sql(f"SELECT {typed} FROM told_rows").to_arrow_table()  # noqa: S608 - names are quoted
        add_table(opened, told.name, told.declaration, found)  # bounds hold for what others say, too
        clipped = opened.sql(f"SELECT * FROM {quoted(told.name)}").to_arrow_table()  # noqa: S608
    return OwnerTable(told.declaration, clipped.rename_columns(list(told.declaration.columns)))


class _AllTables:
    """An owner's tables, those that were told, and empty ones in the place of those that it has not."""

    def __init__(self, names: tuple[str, ...], terms: MergedTerms) -> None:
        self._names, self._terms = names, terms
        self.told: dict[str, OwnerTable] = {}
        self._kept = IdentityCache[OwnerTable]()

    def rows_of(self, told: ToldTable, table: OwnerTable) -> list[Group]:
        """An owner's rows of a table that is told; equal ones are numbered, so that none is lost."""
        own = self._held(table).get(told.name)
        if own is None:
            return []
        rows = execute_at_owner(OwnerTable(own.declaration, own.rows), {told.name: own.declaration}, told.sql)
        seen = Counter[Group]()
        found = list[Group]()
        for row in (tuple(each.values()) for each in rows.to_pylist()):
            found.append((*row, str(seen[row])))
            seen[row] += 1
        return found

    def all_of(self, table: OwnerTable) -> OwnerTable:
        """Kept: what is selected of a table is kept with it."""
        return self._kept.get(table, lambda: self._made(table))

    def _made(self, table: OwnerTable) -> OwnerTable:
        held, declared = self._held(table), self._terms.tables(self._names)
        everything = {name: self.told.get(name) or held.get(name) or _empty(declared[name]) for name in self._names}
        first = everything.pop(self._names[0])
        return replace(table, declaration=first.declaration, rows=first.rows, beside=everything)

    def _held(self, table: OwnerTable) -> dict[str, OwnerTable]:
        owner = self._terms.owners[table.place]
        first = next(name for name in self._names if owner in self._terms.holders[name])
        return {first: table, **table.beside}


def _empty(declaration: TableDeclaration) -> OwnerTable:
    columns = {name: arrow.array([], ARROW_TYPES[kind_of(each)]) for name, each in declaration.columns.items()}
    return OwnerTable(declaration, arrow.table(columns))
