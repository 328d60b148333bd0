"""Rows that a join counts more than once: people in reach of two stations are in the groups of both.

Numbers of such groups can be subtracted: of two circles nearly in the same place, all but a few rows are in both. Rows
that are in the same groups (as often), and meet the same conditions, make a *part*; every sum over groups is a sum over
parts. So groups are told, in their order, as long as each part that they make has enough rows. This goes for a single
group, too: a condition that joins one person with 1,000 rows, and all others with one, would tell that person's value
in the thousands of a sum. Which parts have rows is told to all parties, as it is of other parts, and how many owners
have each; of sizes only whether they are enough.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Compare, Program
from winnow.analytics.sql.owner_rows import Group, SelectedRows, units_of
from winnow.analytics.sql.public_values import open_public_values
from winnow.analytics.sql.row_sets import DecidedSets, RowSet
from winnow.analytics.stats.suppression import SHOWN, SMALL

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

Counts: TypeAlias = Mapping[tuple[int, str], int]
"""By group, and which sets of rows: how often the rows of a part are in both."""
WHAT = "GROUP BY with rows in several groups"


def without_small_parts(
    decided: DecidedSets, sets: Sequence[RowSet], selected: SelectedRows, minimum: int
) -> Program[DecidedSets]:
    """What was decided, with groups hidden that would tell of too few rows."""
    shown = np.flatnonzero(decided.rows == SHOWN)
    if minimum == 1 or not len(shown):
        return decided

    parts = _Parts(selected, sets, shown)
    (overlap,) = yield Compare(
        label="whether rows count more than once",
        local=lambda table: np.array([parts.repeated(table)], np.int64),
        thresholds=np.ones(1, np.int64),
        bits=decided.bits,
    )
    if not overlap:
        return decided
    kept = yield from _kept_groups(parts, minimum, decided.bits)
    hidden = [int(group) for group in shown if group not in kept]
    rows = decided.rows.copy()
    rows[hidden] = SMALL
    return replace(decided, rows=rows)


def _kept_groups(parts: "_Parts", minimum: int, bits: int) -> Program[list[int]]:
    told = yield from open_public_values(lambda table: sorted(parts.sizes(table)), WHAT)

    def sizes(table: "OwnerTable") -> NDArray[np.int64]:
        own = parts.sizes(table)
        return np.array([own.get(each, 0) for each in told], np.int64)

    enough = yield Compare(
        label="parts of groups with enough rows",
        local=sizes,
        thresholds=np.full(len(told), minimum, np.int64),
        bits=bits,
    )
    read = [(_read(each), bool(large)) for each, large in zip(told, enough, strict=True)]
    kept = list[int]()
    for group in parts.shown.tolist():
        if _all_enough(read, {*kept, group}):
            kept.append(group)
    return kept


def _all_enough(parts: Sequence[tuple[Counts, bool]], groups: set[int]) -> bool:
    """Whether each part that these groups alone make is known to have enough rows."""
    states: dict[object, bool] = {}
    for counts, large in parts:
        within = tuple(each for each in sorted(counts.items()) if each[0][0] in groups)
        if within:
            states[within] = states.get(within, False) or large
    return all(states.values())


class _Parts:
    """An owner's rows by part, in the groups that are shown. They are kept: several steps ask for them."""

    def __init__(self, selected: SelectedRows, sets: Sequence[RowSet], shown: NDArray[np.int64]) -> None:
        self._selected, self._sets, self.shown = selected, sets, shown
        self._kept: dict[int, tuple[OwnerTable, Counter[Group]]] = {}

    def repeated(self, table: "OwnerTable") -> int:
        """How many rows are in several groups, or in one more than once."""
        return sum(size for part, size in self.sizes(table).items() if sum(_read(part).values()) > 1)

    def sizes(self, table: "OwnerTable") -> Counter[Group]:
        kept = self._kept.get(id(table))
        if kept is None or kept[0] is not table:
            kept = self._kept[id(table)] = (table, self._counted(table))
        return kept[1]

    def _counted(self, table: "OwnerTable") -> Counter[Group]:
        """A part is written as its groups, each with a digit for each set of rows, and how often a row is in both."""
        rows = self._selected.rows(table)
        codes, units = self._selected.groups.codes(rows), units_of(rows)
        assert units is not None
        kept = np.isin(codes, self.shown)
        masks = np.array([each.mask(rows)[kept] for each in self._sets]).reshape(len(self._sets), -1)
        held, patterns = np.unique(masks, axis=1, return_inverse=True)
        digits = ["".join("01"[each] for each in pattern) for pattern in held.T.astype(int).tolist()]
        found, times = np.unique(np.stack([units[kept], codes[kept], patterns]), axis=1, return_counts=True)
        parts: dict[int, list[str]] = {}
        for unit, code, pattern, count in zip(*found.tolist(), times.tolist(), strict=True):
            parts.setdefault(unit, []).append(f"{code}x{count}x{digits[pattern]}")
        return Counter((" ".join(own),) for own in parts.values())


def _read(text: Group) -> Counts:
    """As an owner wrote it: what cannot be read is in no group."""
    found = [each.split("x") for each in (text[0] or "").split(" ")]
    return {
        (int(each[0]), each[2]): int(each[1]) for each in found if len(each) == 3 and (each[0] + each[1]).isdecimal()
    }
