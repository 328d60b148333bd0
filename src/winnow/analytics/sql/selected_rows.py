"""The rows that a statement selects, by group, as the steps of its program ask for them; and what they belong to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Compare, Local, Program, Sum
from winnow.analytics.sql.identity_cache import IdentityCache
from winnow.analytics.sql.join_units import EVEN, ROW, UNIT
from winnow.analytics.stats.plan import Grouping
from winnow.analytics.tables.owner_table import OwnerTable

if TYPE_CHECKING:
    from winnow.analytics.sql.owner_rows import Group, RowSelection

GROUP = "group"
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class QueryGroups(Grouping):
    """The groups of a statement, by number."""

    groups: int

    @property
    def count(self) -> int:
        return self.groups

    def codes(self, table: OwnerTable) -> NDArray[np.int64]:
        return table.numbers(GROUP).astype(np.int64)


class SelectedRows:
    """The selected rows of a table by group. They are kept: every step of a program asks for them."""

    def __init__(self, selection: "RowSelection", groups: "Sequence[Group]") -> None:
        self._selection, self._listed = selection, groups
        self.groups = QueryGroups(columns=(), groups=len(groups))
        self._kept = IdentityCache[tuple[OwnerTable, int]]()

    def rows(self, table: OwnerTable) -> OwnerTable:
        """Those that belong to a group, with its number."""
        return self._found(table)[0]

    def counts(self, table: OwnerTable, mask: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """By group: how many rows there are, or of a join how many units they belong to."""
        rows = self.rows(table)
        return distinct_units(rows, self.groups.codes(rows), self.groups.count, mask)

    def drawn(self, table: OwnerTable) -> bool:
        """Whether an owner is among those that TABLESAMPLE SYSTEM takes."""
        return self._selection.drawn(table)

    def outside(self, table: OwnerTable) -> int:
        """How many belong to no group."""
        return self._found(table)[1]

    def _found(self, table: OwnerTable) -> tuple[OwnerTable, int]:
        return self._kept.get(table, lambda: self._selection.grouped(table, self._listed))


def distinct_units(
    rows: OwnerTable, codes: NDArray[np.int64], count: int, mask: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """By code: how many rows, or of a join how many different units."""
    codes, units = codes if mask is None else codes[mask], units_of(rows)
    if units is None:
        return np.bincount(codes, minlength=count)
    width = int(units.max(initial=0)) + 1
    pairs = np.unique(codes * width + (units if mask is None else units[mask]))
    return np.bincount(pairs // width, minlength=count)


def units_of(rows: OwnerTable) -> NDArray[np.int64] | None:
    """What each row of a join belongs to; None where every row counts on its own."""
    return rows.numbers(UNIT).astype(np.int64) if UNIT in rows.rows.column_names else None


def rows_within_units(rows: OwnerTable) -> NDArray[np.int64]:
    """Of each row of a join, which row of its unit it is made of: of the table of which the unit has the most here.

    So a unit may count as often as it has rows in one table, and what is counted more often shows; but not what counts
    all equally often.
    """
    units = units_of(rows)
    assert units is not None
    names = rows.rows.column_names
    numbers = [rows.numbers(name).astype(np.int64) for name in names if name.startswith(ROW)]
    pairs = [np.unique(np.stack([units, each]), axis=1) for each in numbers]
    sizes = np.stack([np.bincount(each[0], minlength=int(units.max(initial=0)) + 1) for each in pairs])
    own = np.stack(numbers)[sizes.argmax(axis=0)[units], np.arange(len(units))]
    even = [rows.numbers(name).astype(np.int64) for name in names if name.startswith(EVEN)]
    found: NDArray[np.int64] = np.unique(np.stack([own, *even]), axis=1, return_inverse=True)[1].reshape(-1)
    return found


def over_selected(program: Program[T], selected: SelectedRows) -> Program[T]:
    """A program about the selected rows as one about the owner's table."""
    try:
        step = next(program)
        while True:
            assert isinstance(step, Sum | Compare)
            opened = yield replace(step, local=_after_selection(step.local, selected))
            step = program.send(opened)
    except StopIteration as stop:
        answer: T = stop.value
        return answer


def _after_selection(local: Local, selected: SelectedRows) -> Local:
    return lambda table: local(selected.rows(table))
