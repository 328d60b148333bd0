"""How often an owner's rows are counted in each group of a join."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.sql.identity_cache import IdentityCache
from winnow.analytics.sql.row_sets import ALL_ROWS, RowSet
from winnow.analytics.sql.selected_rows import SelectedRows, rows_within_units, units_of

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable


@dataclass(frozen=True, kw_only=True)
class CountBit:
    """Whether a bit is 1 of the number that says how often a row is in a group, in a set of rows."""

    group: int
    rows: RowSet
    bit: int


@dataclass(frozen=True, kw_only=True)
class _OwnRows:
    selected: "OwnerTable"
    codes: NDArray[np.int64]
    """The group of each joined row."""
    row: NDArray[np.int64]
    """Which row of its unit it is made of, by number."""
    units: NDArray[np.int64]
    """By that number: the unit."""


class RepeatedRows:
    """The rows that stand in joined rows of the groups that are shown. They are kept: several steps ask for them."""

    def __init__(self, selected: SelectedRows, shown: NDArray[np.int64]) -> None:
        self._selected, self._shown = selected, shown
        self._kept = IdentityCache[_OwnRows]()

    def shared(self, table: "OwnerTable") -> NDArray[np.int64]:
        """By shown group: how many of its rows count more than once in all."""
        own = self._own(table)
        within = np.isin(own.codes, self._shown)
        often = np.bincount(own.row[within], minlength=len(own.units)) > 1
        return np.array([np.sum(often & (self._counts(own, int(group)) > 0)) for group in self._shown], np.int64)

    def as_often(self, table: "OwnerTable", groups: Sequence[int], times: Sequence[int]) -> NDArray[np.int64]:
        """By group and number: how many rows are in the group so often, or more."""
        own = self._own(table)
        counts = [self._counts(own, group) for group in groups]
        return np.array([np.sum(each >= least) for each in counts for least in times], np.int64)

    def units(
        self, table: "OwnerTable", conditions: Sequence[CountBit], parts: Sequence[tuple[bool, ...]]
    ) -> NDArray[np.int64]:
        """By part, which says of each condition whether it holds: how many units have a row in it."""
        own = self._own(table)
        held = np.stack([self._counts(own, each.group, each.rows) >> each.bit & 1 for each in conditions])
        found, place = np.unique(np.packbits(held.astype(bool), axis=0), axis=1, return_inverse=True)
        pairs = np.unique(np.stack([place.reshape(-1), own.units]), axis=1)
        sizes = np.bincount(pairs[0], minlength=found.shape[1]).tolist()
        by_part = {each.tobytes(): size for each, size in zip(found.T, sizes, strict=True)}
        return np.array([by_part.get(np.packbits(part).tobytes(), 0) for part in parts], np.int64)

    def _counts(self, own: _OwnRows, group: int, rows: RowSet = ALL_ROWS) -> NDArray[np.int64]:
        chosen = own.codes == group
        if rows != ALL_ROWS:
            chosen &= rows.mask(own.selected)
        return np.bincount(own.row[chosen], minlength=len(own.units))

    def _own(self, table: "OwnerTable") -> _OwnRows:
        return self._kept.get(table, lambda: self._read(table))

    def _read(self, table: "OwnerTable") -> _OwnRows:
        rows = self._selected.rows(table)
        units = units_of(rows)
        assert units is not None
        found, row = np.unique(np.stack([units, rows_within_units(rows)]), axis=1, return_inverse=True)
        return _OwnRows(selected=rows, codes=self._selected.groups.codes(rows), row=row.reshape(-1), units=found[0])
