"""The rows that a statement selects at an owner: their group, and the numbers that are summed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as arrow
from numpy.typing import NDArray

from winnow.analytics.sql.execute_at_owner import execute_at_owner
from winnow.analytics.sql.first_rows import Place, not_beyond, with_lots
from winnow.analytics.sql.identity_cache import IdentityCache
from winnow.analytics.sql.join_units import UNIT
from winnow.analytics.sql.nearest_rows import PairRanks, pair_ranks
from winnow.analytics.sql.query_plan import Argument, QueryPlan
from winnow.analytics.sql.selected_rows import GROUP
from winnow.analytics.sql.statement_limits import MAX_PUBLIC_VALUES
from winnow.analytics.sql.table_sample import TableSample
from winnow.analytics.tables.declaration import ColumnDeclaration, TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable

Group: TypeAlias = tuple[str | None, ...]
WEIGHT = "weight"
"""The column of a sample that says how many rows each of its rows stands for."""


class RowSelection:
    """Selects an owner's rows by a plan."""

    def __init__(
        self, plan: QueryPlan, declarations: Mapping[str, TableDeclaration], owners: int = 1, minimum: int = 1
    ) -> None:
        self._plan, self._declarations, self._owners = plan, declarations, owners
        self._lookups, self._minimum = plan.lookups if minimum > 1 else (), minimum
        self._public = IdentityCache[list[Group]]()
        self._executed = IdentityCache[arrow.Table]()
        self.end: Place | None = None
        """Where the rows end that the statement is about, if it is about the first ones."""
        self.nearest_ends: list[Place | None] | None = None
        """Where they end for each place, if it is about the nearest ones."""
        columns = selected_columns((*plan.arguments, *plan.indicators))
        for name in plan.identifiers:
            columns[name] = ColumnDeclaration(level="private")
        if plan.sample is not None:
            columns[WEIGHT] = ColumnDeclaration(level="public", type="number")
        if plan.counted != "rows":
            columns[UNIT] = ColumnDeclaration(level="private", type="integer")
        for name in plan.rows:
            columns[name] = ColumnDeclaration(level="private", type="integer")
        self._selected = TableDeclaration(columns=columns)

    def grouped(self, table: OwnerTable, groups: Sequence[Group]) -> tuple[OwnerTable, int]:
        """The rows that belong to a group, and how many do not."""
        rows = self._rows(table)
        if self.end is not None:
            rows = rows.filter(arrow.array(not_beyond(self.ranks(table), self.end)))
        if self.nearest_ends is not None:
            rows = rows.filter(arrow.array(self.pairs(table).within(self.nearest_ends)))
        codes = group_codes([rows.column(key.name) for key in self._plan.keys], groups, rows.num_rows)
        if self._plan.sample is not None:
            rows, codes = self._weighted(self._plan.sample, rows, codes)
        kept = codes >= 0
        columns = {GROUP: arrow.array(codes[kept])}
        for each in (*self._plan.arguments, *self._plan.indicators):
            columns[each.name] = rows.column(each.name).filter(arrow.array(kept))
        for name in (*self._plan.identifiers, *([] if self._plan.sample is None else [WEIGHT])):
            columns[name] = rows.column(name).filter(arrow.array(kept))
        if self._plan.counted == "rows":
            return OwnerTable(declaration=self._selected, rows=arrow.table(columns)), int((~kept).sum())
        encoded = rows.column(UNIT).combine_chunks().dictionary_encode()
        units = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
        columns[UNIT] = arrow.array(units[kept].astype(np.int64))
        for name in self._plan.rows:
            columns[name] = rows.column(name).fill_null(0).filter(arrow.array(kept))
        return OwnerTable(declaration=self._selected, rows=arrow.table(columns)), len(np.unique(units[~kept]))

    def _weighted(
        self, sample: TableSample, rows: arrow.Table, codes: NDArray[np.int64]
    ) -> tuple[arrow.Table, NDArray[np.int64]]:
        """The rows of a sample, with how many each stands for; those by group are drawn here."""
        weights = np.full(len(codes), sample.most if sample.method == "BERNOULLI" else 1.0)
        if sample.by_group:
            taken, weights = sample.of_groups(codes, self._plan.local_sql)
            rows, codes = rows.filter(arrow.array(taken)), codes[taken]
        return rows.append_column(WEIGHT, arrow.array(weights)), codes

    def ranks(self, table: OwnerTable) -> list[NDArray[np.int64]]:
        """Of the rows by each key of ORDER BY."""
        assert self._plan.first is not None
        rows = self._rows(table)
        return with_lots([key.ranks(rows.column(key.name)) for key in self._plan.first.keys], rows.num_rows, table)

    def pairs(self, table: OwnerTable) -> PairRanks:
        """Of places and the rows that may be nearest to them."""
        assert self._plan.nearest is not None
        rows = self._rows(table)
        (lots,) = with_lots([], rows.num_rows, table)
        return pair_ranks(self._plan.nearest, rows, lots)

    def place_count(self, table: OwnerTable) -> int:
        """How many places there are, whatever WHERE says."""
        assert self._plan.nearest is not None
        return int(self._execute(table, self._plan.nearest.count_sql, sampled=False).column(0)[0].as_py())

    def count(self, table: OwnerTable) -> int:
        return int(self._rows(table).num_rows)

    def _rows(self, table: OwnerTable) -> arrow.Table:
        return self._executed.get(table, lambda: self._execute(table, self._plan.local_sql, sampled=True))

    def public_values(self, table: OwnerTable) -> list[Group]:
        """The values of keys that are not listed, over all rows."""
        return self._public.get(table, lambda: self._read_public_values(table))

    def _read_public_values(self, table: OwnerTable) -> list[Group]:
        assert self._plan.public_sql is not None
        sql = f"SELECT * FROM ({self._plan.public_sql}) LIMIT {MAX_PUBLIC_VALUES + 1}"  # noqa: S608 - ours
        found = self._execute(table, sql, sampled=False)
        return [tuple(row.values()) for row in found.to_pylist()]

    def _execute(self, table: OwnerTable, sql: str, *, sampled: bool) -> arrow.Table:
        sample = self._plan.sample if sampled else None
        found = execute_at_owner(
            table, self._declarations, sql, sample, self._lookups, self._plan.multiples, self._minimum
        )
        return found if sample is None or self.drawn(table) else found.slice(0, 0)

    def drawn(self, table: OwnerTable) -> bool:
        sample = self._plan.sample
        if sample is None or sample.method != "SYSTEM":
            return True
        return sample.has_owner(self._plan.local_sql, table.place, self._owners)


def selected_columns(arguments: Iterable[Argument]) -> dict[str, ColumnDeclaration]:
    """Of selected rows: their group, and their numbers."""
    columns = {GROUP: ColumnDeclaration(level="public", type="integer")}
    for each in arguments:
        bounds = (each.column.low, each.column.high)
        columns[each.name] = ColumnDeclaration(level="protected", type="number", bounds=bounds)
    return columns


def group_codes(columns: Sequence[arrow.ChunkedArray], groups: Sequence[Group], rows: int) -> NDArray[np.int64]:
    """The place of each row's values among the groups; −1 where they are none of them."""
    combined, known = np.zeros(rows, np.int64), [()]
    for column in columns:
        encoded = column.combine_chunks().dictionary_encode()
        values = [*encoded.dictionary.to_pylist(), None]
        codes = encoded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False).astype(np.int64)
        present, combined = np.unique(combined * len(values) + codes, return_inverse=True)
        known = [(*known[each // len(values)], values[each % len(values)]) for each in present.tolist()]
    places = {group: place for place, group in enumerate(groups)}
    return np.array([places.get(each, -1) for each in known], np.int64)[combined]
