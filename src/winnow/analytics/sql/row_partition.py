"""Conditions of one statement divide the rows of a group into parts, and none of the parts may be small.

Counts of several conditions can be subtracted from each other: of 200 rows, 120 below 50 years and 77 above 53 leave 3
between. So a condition is accepted within a group if every part that it makes of the parts before has no rows or
enough; everything that follows from the numbers of accepted conditions is then about such parts. Otherwise its numbers
are hidden there. Conditions are tried in the statement's order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Compare, Local, Program
from winnow.analytics.sql.selected_rows import SelectedRows, units_of
from winnow.analytics.stats.suppression import EMPTY, SHOWN, SMALL, States

if TYPE_CHECKING:
    from winnow.analytics.sql.row_sets import RowSet
    from winnow.analytics.tables.owner_table import OwnerTable

MAX_PARTS = 64
"""Of a group."""
Part: TypeAlias = tuple[bool, ...]
"""Whether each accepted condition holds."""


@dataclass
class _Group:
    """The conditions that are accepted in a group, by number, and the parts that have rows."""

    accepted: list[int] = field(default_factory=list)
    parts: list[Part] = field(default_factory=lambda: [()])


@dataclass(frozen=True, kw_only=True)
class AskedPart:
    """Rows of a shown group (by its place among them) for which conditions, by number, hold or do not."""

    place: int
    holds: tuple[tuple[int, bool], ...]


@dataclass(frozen=True, kw_only=True)
class DividedRows:
    """Rows for which conditions, by number, hold together, such as those that have a number."""

    holds: tuple[int, ...]
    implied: tuple[int, ...]
    """Conditions that are known to hold for all of them: that there are none elsewhere tells nothing."""


def decide_conditions(
    overlapping: Sequence[bool],
    groups: int,
    count_parts: Callable[[Sequence[AskedPart]], Program[States]],
    divided: Sequence[DividedRows] = (),
) -> Program[list[States]]:
    """The state of each condition's rows in each group that is shown, parts are counted once a condition; and then of
    the rows that these parts divide, which sums are about.

    Of conditions that are `overlapping`, which come last, one has to hold for a part to matter: rows for which none
    holds are in no sum.
    """
    found = [_Group() for _ in range(groups)]
    decided = list[States]()
    for number, last in enumerate(overlapping):
        tried = [place for place, group in enumerate(found) if len(group.parts) <= MAX_PARTS // 2]
        asked = [(place, part, holds) for place in tried for part in found[place].parts for holds in (True, False)]
        answers = yield from count_parts(
            [
                AskedPart(place=place, holds=(*zip(found[place].accepted, part, strict=True), (number, holds)))
                for place, part, holds in asked
            ]
        )
        states = np.full(groups, SMALL, np.int8)
        for place in tried:
            own = [(part, holds, answers[at]) for at, (group, part, holds) in enumerate(asked) if group == place]
            summed = [
                holds
                or not last
                or any(held and overlapping[each] for each, held in zip(found[place].accepted, part, strict=True))
                for part, holds, _ in own
            ]
            if any(state == SMALL and matters for (_, _, state), matters in zip(own, summed, strict=True)):
                continue
            found[place].accepted.append(number)
            found[place].parts = [(*part, holds) for part, holds, state in own if state != EMPTY]
            states[place] = SHOWN if any(holds and state == SHOWN for _, holds, state in own) else EMPTY
        decided.append(states)
    return [*decided, *(yield from _decide_divided(divided, found, count_parts))]


def _decide_divided(
    divided: Sequence[DividedRows],
    found: Sequence[_Group],
    count_parts: Callable[[Sequence[AskedPart]], Program[States]],
) -> Program[list[States]]:
    """SUM(pay) less SUM(pay) FILTER (WHERE ward = 'north') is the pay of the one person elsewhere who has any: rows are
    told of where they are enough in every part.
    """
    asked = list[tuple[int, int]]()
    parts = list[AskedPart]()
    for number, rows in enumerate(divided):
        for place, group in enumerate(found):
            for part in (tuple(zip(group.accepted, each, strict=True)) for each in group.parts):
                if all(holds or condition not in rows.implied for condition, holds in part):
                    asked.append((number, place))
                    parts.append(AskedPart(place=place, holds=(*part, *((each, True) for each in rows.holds))))
    answers = yield from count_parts(parts)
    states = [np.full(len(found), EMPTY, np.int8) for _ in divided]
    for (number, place), state in zip(asked, answers.tolist(), strict=True):
        if state == SMALL or states[number][place] == EMPTY:
            states[number][place] = state
    return states


def count_own_parts(
    asked: "Sequence[AskedPart]",
    sets: "Sequence[RowSet]",
    selected: SelectedRows,
    shown: NDArray[np.int64],
    minimum: int,
    bits: int,
    tell_empty: bool,
) -> Program[States]:
    """Of parts whose rows each owner has by itself."""

    def counts(table: "OwnerTable") -> NDArray[np.int64]:
        rows = selected.rows(table)
        used = max((number for part in asked for number, _ in part.holds), default=-1) + 1
        masks = np.array([each.mask(rows) for each in sets[:used]])
        codes, units = selected.groups.codes(rows), units_of(rows)
        own = {place: masks[:, codes == shown[place]] for place in {part.place for part in asked}}
        found = []
        for part in asked:
            chosen = np.logical_and.reduce([own[part.place][number] == holds for number, holds in part.holds])
            own_units = None if units is None else units[codes == shown[part.place]][chosen]
            found.append(int(chosen.sum()) if own_units is None else len(np.unique(own_units)))
        return np.array(found, np.int64)

    return (yield from count_states(counts, len(asked), minimum, bits, tell_empty=tell_empty))


def count_states(counts: Local, length: int, minimum: int, bits: int, *, tell_empty: bool) -> Program[States]:
    """Of each count: none (if `tell_empty`), fewer than `minimum`, or enough. Only those bits are opened."""
    if not length:
        return np.zeros(0, np.int8)
    enough = yield Compare(
        label="sets with enough rows", local=counts, thresholds=np.full(length, minimum, np.int64), bits=bits
    )
    states = np.where(enough, SHOWN, EMPTY).astype(np.int8)
    below = np.flatnonzero(~enough)
    if not tell_empty:
        states[below] = SMALL
    elif len(below) and minimum > 1:
        thresholds = np.ones(len(below), np.int64)
        some = yield Compare(
            label="sets without rows", local=lambda table: counts(table)[below], thresholds=thresholds, bits=bits
        )
        states[below] = np.where(some, SMALL, EMPTY)
    return states
