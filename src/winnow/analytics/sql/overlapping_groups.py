"""Rows that a join counts more than once: people in reach of two stations are in the groups of both.

Numbers of such groups can be subtracted: of two circles nearly in the same place, all but a few rows are in both. Rows
that are in the same groups (as often), and meet the same conditions, make a *part*; every sum over groups is a sum over
parts. So groups are told, in their order, as long as each part that they make has enough units. This goes for a single
group, too: a condition that joins one person with 1,000 rows, and all others with one, would tell that person's value
in the thousands of a sum. A part may be small if it is in two groups, and each of them has a large part of its own:
then no sum has it alone, nor more than twice as much of it as of others.

Parts are counted in shares, those of a large one at a time: what there is within a small one is not asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Compare, Local, Program
from winnow.analytics.sql.repeated_rows import CountBit, RepeatedRows
from winnow.analytics.sql.row_partition import count_states
from winnow.analytics.sql.row_sets import ALL_ROWS, DecidedSets, RowSet
from winnow.analytics.sql.selected_rows import SelectedRows
from winnow.analytics.stats.suppression import EMPTY, SHOWN, SMALL

Part: TypeAlias = tuple[bool, ...]
"""Which conditions hold."""
MAX_PARTS, MAX_STEPS, AT_ONCE = 256, 64, 3
"""Parts that are kept, comparisons, and conditions that are added by one; what is left then is not told."""
COUNT_BITS = 20
"""A row that is counted more often in a group is not told of."""


def without_small_parts(
    decided: DecidedSets, sets: Sequence[RowSet], selected: SelectedRows, minimum: int, *, tell_empty: bool
) -> Program[DecidedSets]:
    """What was decided, with groups hidden that would tell of too few rows."""
    shown = np.flatnonzero(decided.rows == SHOWN)
    if minimum == 1 or not len(shown):
        return decided
    rows = RepeatedRows(selected, shown)
    repeated = yield from _some("groups whose rows count more than once", rows.shared, len(shown), decided.bits)
    shared = shown[repeated].tolist()
    bits = yield from _count_bits(rows, shared, decided.bits)
    tree, left_out = _PartTree(rows=rows, minimum=minimum, bits=decided.bits, tell_empty=tell_empty), list[int]()
    for group in shared:
        chosen = [each for each in sets if each.chosen and decided.states[each][group] != SMALL]
        conditions = [
            CountBit(group=group, rows=each, bit=bit) for each in (ALL_ROWS, *chosen) for bit in range(bits[group])
        ]
        accepted = bits[group] <= COUNT_BITS and (yield from tree.add(conditions))
        if not accepted:
            left_out.append(group)
    states = decided.rows.copy()
    states[left_out] = SMALL
    return replace(decided, rows=states)


def _count_bits(rows: RepeatedRows, groups: Sequence[int], bits: int) -> Program[dict[int, int]]:
    """By group: how many bits the number has that says how often a row is in it."""
    found = dict.fromkeys(groups, 1)
    for times in ([2], [1 << bit for bit in range(2, COUNT_BITS + 1)]):
        asked = [group for group in groups if found[group] == 2 or times == [2]]
        opened = yield from _some(
            "how often rows are in a group",
            partial(rows.as_often, groups=asked, times=times),
            len(asked) * len(times),
            bits,
        )
        for group, own in zip(asked, opened.reshape(len(asked), len(times)), strict=True):
            found[group] += int(own.sum())
    return found


def _some(label: str, local: Local, length: int, bits: int) -> Program[NDArray[np.bool_]]:
    """Which counts are not 0."""
    if not length:
        return np.zeros(0, bool)
    opened: NDArray[np.bool_] = yield Compare(label=label, local=local, thresholds=np.ones(length, np.int64), bits=bits)
    return opened


@dataclass(kw_only=True)
class _PartTree:
    """The parts that accepted conditions make, and which are large."""

    rows: RepeatedRows
    minimum: int
    bits: int
    tell_empty: bool
    steps: int = 0
    conditions: list[CountBit] = field(default_factory=list)
    parts: dict[Part, bool] = field(default_factory=lambda: {(): True})

    def add(self, conditions: Sequence[CountBit]) -> Program[bool]:
        """Whether all can be accepted."""
        for first in range(0, len(conditions), AT_ONCE):
            accepted = yield from self._add(conditions[first : first + AT_ONCE])
            if not accepted:
                return False
        return True

    def _add(self, conditions: Sequence[CountBit]) -> Program[bool]:
        if self.steps == MAX_STEPS or len(self.parts) > MAX_PARTS:
            return False
        self.steps += 1
        wanted = [*self.conditions, *conditions]
        asked = [(*part, *held) for part in self.parts for held in product((True, False), repeat=len(conditions))]
        count = partial(self.rows.units, conditions=wanted, parts=asked)
        states = yield from count_states(count, len(asked), self.minimum, self.bits, tell_empty=self.tell_empty)
        found = {part: bool(state == SHOWN) for part, state in zip(asked, states, strict=True) if state != EMPTY}
        large = {_held(part) for part, enough in found.items() if enough}
        if not all(enough or _is_covered(_held(part), large) for part, enough in found.items()):
            return False
        self.conditions, self.parts = wanted, found
        return True


def _held(part: Part) -> frozenset[int]:
    return frozenset(np.flatnonzero(part).tolist())


def _is_covered(held: frozenset[int], large: set[frozenset[int]]) -> bool:
    """Whether nothing holds, so that its rows are in no sum, or exactly what does in two large parts."""
    return not held or any(each < held and held - each in large for each in large if each)
