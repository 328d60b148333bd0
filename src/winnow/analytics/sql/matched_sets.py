"""Which groups of a join between two owners, and which sets of rows within them, enough identifiers stand behind.

Counts are compared in shares, and only yes or no is opened. A set that a condition chooses has a part at each owner; it
may be told of where these parts divide the group into parts that are empty or large enough (`row_partition.py`).
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Program
from winnow.analytics.sql.matched_join import Cell, MatchedJoin
from winnow.analytics.sql.matched_rows import KeyedSum
from winnow.analytics.sql.row_partition import AskedPart, DividedRows, decide_conditions
from winnow.analytics.sql.row_sets import (
    ALL_ROWS,
    DecidedSets,
    RowSet,
    chosen_first,
    condition_numbers,
    filled_states,
    sets_of,
)
from winnow.analytics.stats.suppression import EMPTY, SHOWN, SMALL, States

Part = tuple[int, RowSet]
"""What a set demands of the rows of one of the two owners."""


def decide_matched_sets(join: MatchedJoin) -> Program[DecidedSets]:
    """Of groups first, and then of sets within those with enough identifiers."""
    minimum, tell_empty = join.terms.minimum, not join.plan.private
    cells = [_cell(join, group, ()) for group in range(len(join.groups))]
    enough = yield from join.compare("groups with enough rows", cells, minimum)
    rows = np.where(enough, SHOWN, EMPTY if minimum == 1 else SMALL).astype(np.int8)
    below = np.flatnonzero(~enough) if tell_empty and minimum > 1 else np.zeros(0, np.int64)
    some = yield from join.compare("what is empty", [cells[int(group)] for group in below], 1)
    rows[below] = np.where(some, SMALL, EMPTY)
    shown, sets = np.flatnonzero(enough), [each for each in sets_of(join.plan) if each != ALL_ROWS]
    states = dict.fromkeys((ALL_ROWS, *sets), rows)
    if len(shown):
        states |= yield from _decide_within(join, sets, rows, shown)
    return DecidedSets(bits=join.bits, outside=False, rows=rows, states=states)


def parts_of(join: MatchedJoin, rows: RowSet) -> list[Part]:
    """A set by owner."""
    found = []
    for place, side in enumerate(join.sides):
        present = tuple(each for each in rows.present if each in side.side.names)
        nonzero = tuple(each for each in rows.nonzero if each in side.side.names)
        if present or nonzero:
            found.append((place, RowSet(present=present, nonzero=nonzero)))
    return found


def _decide_within(
    join: MatchedJoin, sets: Sequence[RowSet], rows: States, shown: NDArray[np.int64]
) -> Program[dict[RowSet, States]]:
    chosen, others = chosen_first(sets), [each for each in sets if not each.chosen]
    overlapping: dict[Part, bool] = {}
    for each in chosen:
        for part in parts_of(join, each):
            overlapping.setdefault(part, each.overlapping)
    conditions = list(overlapping)
    numbers = {part: place for place, part in enumerate(conditions)}
    for part in (one for each in others for one in parts_of(join, each)):
        numbers.setdefault(part, len(numbers))
    by_name = condition_numbers([part for _, part in conditions])
    divided = [
        DividedRows(
            holds=tuple(numbers[part] for part in parts_of(join, each)),
            implied=tuple(by_name[name] for name in each.implied if name in by_name),
        )
        for each in others
    ]
    count_parts = partial(_count_parts, join, list(numbers), shown)
    decided = yield from decide_conditions(list(overlapping.values()), len(shown), count_parts, divided)
    small = dict(zip(conditions, (states == SMALL for states in decided), strict=False))
    found = dict(zip(others, decided[len(conditions) :], strict=True))
    for each in chosen:
        hidden = np.logical_or.reduce([small[part] for part in parts_of(join, each)])
        found[each] = np.where(hidden, SMALL, SHOWN).astype(np.int8)
    return {each: filled_states(rows, shown, own) for each, own in found.items()}


def _count_parts(
    join: MatchedJoin, conditions: Sequence[Part], shown: NDArray[np.int64], asked: Sequence[AskedPart]
) -> Program[States]:
    cells = [
        _cell(join, int(shown[part.place]), [(conditions[number], holds) for number, holds in part.holds])
        for part in asked
    ]
    return (yield from _count_states(join, "parts with enough rows", cells))


def _count_states(join: MatchedJoin, label: str, cells: Sequence[Cell]) -> Program[States]:
    """Of each count: none (unless a private column chooses rows), fewer than the minimum, or enough."""
    enough = yield from join.compare(label, cells, join.terms.minimum)
    states = np.where(enough, SHOWN, EMPTY).astype(np.int8)
    if join.plan.private and join.terms.minimum > 1:
        states[~enough] = SMALL
        return states
    below = np.flatnonzero(~enough) if join.terms.minimum > 1 else np.zeros(0, np.int64)
    some = yield from join.compare(f"{label}, or none", [cells[int(each)] for each in below], 1)
    states[below] = np.where(some, SMALL, EMPTY)
    return states


def _cell(join: MatchedJoin, group: int, holds: Sequence[tuple[Part, bool]]) -> Cell:
    """The product that counts identifiers with a row in a group for which parts of sets hold, or do not."""
    left, right = (
        KeyedSum(group=own, holds=tuple((rows, held) for (side, rows), held in holds if side == place))
        for place, own in enumerate(join.groups_of(group))
    )
    return left, right
