"""One owner's rows of a join with another's: what it puts into products, by the identifiers that both have.

A join of rows with the same identifier is a sum over identifiers: Σ_rows f·g = Σ_k (Σ f of one owner's rows with k)(Σ g
of the other's). So an owner's matrix has a row for each identifier, in their sorted order, and sums of its own rows.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as arrow
from numpy.typing import NDArray

from winnow.analytics.intersect.intersect_question import identifier_text
from winnow.analytics.sql.execute_at_owner import execute_at_owner
from winnow.analytics.sql.matched_columns import JOINED
from winnow.analytics.sql.opened_sums import Summand
from winnow.analytics.sql.owner_rows import Group, group_codes, selected_columns
from winnow.analytics.sql.query_plan import JoinSide, QueryPlan
from winnow.analytics.sql.row_sets import RowSet
from winnow.analytics.sql.selected_rows import GROUP, QueryGroups
from winnow.analytics.sql.statement_limits import MAX_PUBLIC_VALUES
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable


@dataclass(frozen=True, kw_only=True)
class KeyedSum:
    """A column of an owner's matrix, about its rows in one of its groups for which all of `holds` is so.

    Without a summand: 1 for identifiers that have such a row, else 0.
    """

    group: int
    holds: tuple[tuple[RowSet, bool], ...] = ()
    summand: Summand | None = None
    bits: int = 0
    """Of the fraction of sums in units of a range."""
    at_most: tuple[str, float] | None = None
    """Only rows whose argument of this name is no larger."""
    reach: Literal["own", "sum", "any"] = "own"
    """In a join by distance: of rows in a cell, the sum of those within reach of it, or whether there are any."""


class MatchedRows:
    """The rows of one side of a join, by group; `declarations` are those of the tables that this owner has."""

    def __init__(
        self, side: JoinSide, plan: QueryPlan, declarations: Mapping[str, TableDeclaration], minimum: int
    ) -> None:
        self.side, self._plan, self._declarations = side, plan, declarations
        held = {name.lower() for name in declarations}
        self._lookups = [each for each in plan.lookups if minimum > 1 and each.table.lower() in held]
        arguments = [each for each in (*plan.arguments, *plan.indicators) if each.name in side.names]
        self._declared = TableDeclaration(columns=selected_columns(arguments))
        self._rows: arrow.Table | None = None
        """The rows that statements were executed over last, and what each found."""
        self._found: dict[str, arrow.Table] = {}

    def identifiers(self, table: OwnerTable) -> list[str]:
        """Those of all its rows, whatever WHERE says."""
        found = _identifiers(self._execute(table, self.side.matched_sql))
        return sorted({each for each in found if each is not None})

    def most_rows(self, table: OwnerTable) -> int:
        """Of one identifier that both owners have. This is of all rows: a condition may choose those of one person."""
        found, common = Counter(_identifiers(self._execute(table, self.side.matched_sql))), {*table.matched}
        return max((count for each, count in found.items() if each in common), default=1)

    def several_rows(self, table: OwnerTable) -> bool:
        """Whether an identifier stands in several of all its rows."""
        found = [each for each in _identifiers(self._execute(table, self.side.matched_sql)) if each is not None]
        return len({*found}) < len(found)

    def public_values(self, table: OwnerTable) -> list[Group]:
        if self.side.public_sql is None:
            return []
        sql = f"SELECT * FROM ({self.side.public_sql}) LIMIT {MAX_PUBLIC_VALUES + 1}"  # noqa: S608 - ours
        return [tuple(row.values()) for row in self._execute(table, sql).to_pylist()]

    def matrix(self, table: OwnerTable, groups: Sequence[Group], factors: Sequence[KeyedSum]) -> NDArray[np.int64]:
        """A column for each factor."""
        places, kept = self._places(table)
        return self._columns(table, groups, factors, places, kept, len(table.matched))

    def _columns(
        self,
        table: OwnerTable,
        groups: Sequence[Group],
        factors: Sequence[KeyedSum],
        places: NDArray[np.int64],
        kept: NDArray[np.bool_],
        count: int,
    ) -> NDArray[np.int64]:
        """Of the rows that are kept, which belong to these places of so many."""
        rows = self._execute(table, self.side.local_sql).filter(arrow.array(kept))
        codes = group_codes([rows.column(key.name) for key in self.side.keys], groups, rows.num_rows)
        columns = {GROUP: arrow.array(places)}
        columns |= {name: rows.column(name) for name in self._declared.columns if name != GROUP}
        everything = OwnerTable(declaration=self._declared, rows=arrow.table(columns))
        own = {group: _those(everything, codes == group) for group in {each.group for each in factors}}
        return np.stack([keyed_column(each, own[each.group], count) for each in factors], axis=1)

    def _places(self, table: OwnerTable) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The place of each kept row among the identifiers that both owners have, and which rows are kept."""
        known = {each: place for place, each in enumerate(table.matched)}
        found = _identifiers(self._execute(table, self.side.local_sql))
        places = np.array([-1 if each is None else known.get(each, -1) for each in found], np.int64)
        return places[places >= 0], places >= 0

    def _execute(self, table: OwnerTable, sql: str) -> arrow.Table:
        """Kept for the rows that were asked last: as steps go on, a table gets what was matched, and is another object
        with the same rows.
        """
        if table.rows is not self._rows:
            self._rows, self._found = table.rows, {}
        if sql not in self._found:
            self._found[sql] = execute_at_owner(table, self._declarations, sql, lookups=self._lookups)
        return self._found[sql]


def _those(rows: OwnerTable, mask: NDArray[np.bool_]) -> OwnerTable:
    return OwnerTable(declaration=rows.declaration, rows=rows.rows.filter(arrow.array(mask)))


def keyed_column(factor: KeyedSum, rows: OwnerTable, count: int) -> NDArray[np.int64]:
    if factor.holds:
        rows = _those(rows, np.logical_and.reduce([each.mask(rows) == holds for each, holds in factor.holds]))
    if factor.at_most is not None:
        name, limit = factor.at_most
        rows = _those(rows, rows.numbers(name) <= limit)
    by_identifier = QueryGroups(columns=(), groups=count)
    if factor.summand is not None:
        return factor.summand.local(rows, by_identifier, factor.bits)
    return (np.bincount(by_identifier.codes(rows), minlength=count) > 0).astype(np.int64)


def _identifiers(rows: arrow.Table) -> list[str | None]:
    """What each row is joined by; None where a part of it is missing."""
    names = [name for name in rows.column_names if name.startswith(JOINED)]
    cells = [rows.column(name).to_pylist() for name in names]
    parts = [[None if each is None else identifier_text(each) for each in column] for column in cells]
    return [None if None in row else _joined(row) for row in zip(*parts, strict=True)]


def _joined(parts: Sequence[str | None]) -> str:
    """One text for several parts, another for any others."""
    return str(parts[0]) if len(parts) == 1 else json.dumps(parts, ensure_ascii=False)
