"""Groups of which one row may be in several: people in reach of two stations count for both.

Numbers of such groups can be subtracted: of two circles nearly in the same place, all but a few rows are in both. Rows
that are in the same groups (as often), and meet the same conditions, make a *part*; every sum over groups is a sum over
parts. So groups are told, in their order, as long as each part that they make has enough rows. Which parts have rows is
told to all parties, as it is of other parts, and how many owners have each; of sizes only whether they are enough.
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

Counts: TypeAlias = Mapping[int, int]
"""By group: how often the rows of a part are in it."""
WHAT = "GROUP BY with rows in several groups"


def without_small_parts(
    decided: DecidedSets, sets: Sequence[RowSet], selected: SelectedRows, minimum: int, *, private: bool
) -> Program[DecidedSets]:
    """What was decided, with groups hidden that would tell of too few rows beside others. `private`: a private column
    chooses rows, and then nobody learns which parts have any: of groups that overlap all are hidden.
    """
    shown = np.flatnonzero(decided.rows == SHOWN)
    if minimum == 1 or len(shown) < 2:
        return decided

    parts = _Parts(selected, sets, shown)
    (overlap,) = yield Compare(
        label="whether rows are in several groups",
        local=lambda table: np.array([parts.in_several(table)], np.int64),
        thresholds=np.ones(1, np.int64),
        bits=decided.bits,
    )
    if not overlap:
        return decided
    kept = list[int]()
    if not private:
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
    read = [(*_read(each), bool(large)) for each, large in zip(told, enough, strict=True)]
    kept = list[int]()
    for group in parts.shown.tolist():
        if _all_enough(read, {*kept, group}):
            kept.append(group)
    return kept


def _all_enough(parts: Sequence[tuple[Counts, str, bool]], groups: set[int]) -> bool:
    """Whether each part that these groups alone make is known to have enough rows."""
    states: dict[tuple[object, str], bool] = {}
    for counts, held, large in parts:
        within = tuple((group, times) for group, times in sorted(counts.items()) if group in groups)
        if within:
            states[within, held] = states.get((within, held), False) or large
    return all(states.values())


class _Parts:
    """An owner's rows by part, in the groups that are shown. They are kept: several steps ask for them."""

    def __init__(self, selected: SelectedRows, sets: Sequence[RowSet], shown: NDArray[np.int64]) -> None:
        self._selected, self._sets, self.shown = selected, sets, shown
        self._kept: dict[int, tuple[OwnerTable, Counter[Group]]] = {}

    def in_several(self, table: "OwnerTable") -> int:
        """How many rows are in several groups."""
        return sum(size for part, size in self.sizes(table).items() if " " in (part[0] or ""))

    def sizes(self, table: "OwnerTable") -> Counter[Group]:
        kept = self._kept.get(id(table))
        if kept is None or kept[0] is not table:
            kept = self._kept[id(table)] = (table, self._counted(table))
        return kept[1]

    def _counted(self, table: "OwnerTable") -> Counter[Group]:
        """A part is written as its groups, each with how often a row is in it, and a digit for each set of rows."""
        rows = self._selected.rows(table)
        codes, units = self._selected.groups.codes(rows), units_of(rows)
        assert units is not None
        masks = (
            np.array([each.mask(rows) for each in self._sets]).reshape(len(self._sets), -1).astype(np.int8).astype("U1")
        )
        kept = np.isin(codes, self.shown)
        held = dict(zip(units[kept].tolist(), masks[:, kept].T.tolist(), strict=True))
        pairs, times = np.unique(np.stack([units[kept], codes[kept]]), axis=1, return_counts=True)
        groups: dict[int, list[str]] = {}
        for unit, code, count in zip(*pairs.tolist(), times.tolist(), strict=True):
            groups.setdefault(unit, []).append(f"{code}x{count}")
        return Counter((" ".join(own), "".join(held[unit])) for unit, own in groups.items())


def _read(text: Group) -> tuple[Counts, str]:
    """As an owner wrote it: what cannot be read is in no group."""
    pairs = [each.split("x") for each in (text[0] or "").split(" ")]
    counts = {int(pair[0]): int(pair[1]) for pair in pairs if len(pair) == 2 and all(one.isdecimal() for one in pair)}
    return counts, str(text[1]) if len(text) > 1 else ""
