"""Which rows stand behind each number of a statement, and whether they are enough.

Every number of a group is told of a set of rows: COUNT(*) of all, COUNT(x) and SUM(x) of those where x is not NULL. A
set with 1 … minimum − 1 rows is hidden, and so is a number in which a condition of the statement (FILTER, CASE and the
like) chooses such sets (`row_partition.py`). Nothing is asked about sets of a group that is hidden itself: WHERE may
have chosen a single person.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Compare, Program
from winnow.analytics.sql.query_plan import SEARCHES, QueryAggregate, QueryPlan
from winnow.analytics.sql.row_partition import DividedRows, count_own_parts, decide_conditions
from winnow.analytics.sql.selected_rows import SelectedRows
from winnow.analytics.stats.size_up import MAX_ROW_BITS, ROW_BITS
from winnow.analytics.stats.suppression import EMPTY, SHOWN, SMALL, States
from winnow.core import ConfigError

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

Mask: TypeAlias = NDArray[np.bool_]
MAX_CELLS = 20_000


@dataclass(frozen=True, kw_only=True)
class RowSet:
    """Rows where all `present` arguments have a value, and `nonzero` ones one besides 0."""

    present: tuple[str, ...] = ()
    nonzero: tuple[str, ...] = ()
    chosen: bool = False
    """Whether they are those for which a condition of the statement holds."""
    overlapping: bool = False
    """Whether they are chosen as those that have the values of a sum; of rows in no such set nothing is summed."""
    implied: tuple[str, ...] = ()
    """The indicators of conditions that are known to hold for all of them."""

    def mask(self, table: "OwnerTable") -> Mask:
        found = np.ones(len(table), bool)
        for name in self.present:
            found &= ~np.isnan(table.numbers(name))
        for name in self.nonzero:
            numbers = table.numbers(name)
            found &= ~np.isnan(numbers) & (numbers != 0)
        return found


ALL_ROWS = RowSet()


@dataclass(frozen=True, kw_only=True)
class DecidedSets:
    """What was found out about the selected rows: every count is below 2**bits; `outside` of all groups are enough rows
    to be told of; `rows` and `states` are those of groups and of sets within them.
    """

    bits: int
    outside: bool
    rows: States
    states: dict[RowSet, States]

    def told(self, sets: Iterable[RowSet], group: int) -> bool:
        """Whether a number that is made of these sets may be told."""
        return all(self.states[each][group] != SMALL for each in sets)

    @property
    def small_groups(self) -> int:
        return int((self.rows == SMALL).sum())


def counted_rows(aggregate: QueryAggregate) -> RowSet:
    """The rows that an aggregate is about."""
    unseen = any(each.unseen for each in aggregate.inputs)
    overlaps = aggregate.overlaps and aggregate.function not in (*SEARCHES, "count")
    return RowSet(
        present=tuple(each.name for each in aggregate.inputs),
        chosen=unseen or overlaps,
        overlapping=overlaps and not unseen,
        implied=tuple(name for each in aggregate.inputs for name in each.null_outside),
    )


def sets_behind(aggregate: QueryAggregate) -> list[RowSet]:
    """The sets that must be large enough, or empty, for an aggregate to be told."""
    found = [counted_rows(aggregate), *(RowSet(nonzero=(name,), chosen=True) for name in aggregate.conditions)]
    if aggregate.function not in (*SEARCHES, "count"):
        for each in aggregate.arguments:
            found.append(RowSet(nonzero=(each.name,), implied=each.zero_outside))
            found += [
                RowSet(present=(each.name,), nonzero=(name,), implied=each.null_outside) for name in each.differing
            ]
    for each in aggregate.inputs:
        found += [RowSet(nonzero=(name,), chosen=True) for name in each.conditions]
        if each.unseen and aggregate.function not in (*SEARCHES, "count"):
            found.append(RowSet(nonzero=(each.name,), chosen=True))
    return found


def sets_of(plan: QueryPlan) -> list[RowSet]:
    """Of all numbers of a statement, in its order; all rows first."""
    found = [ALL_ROWS, *(each for aggregate in plan.aggregates for each in sets_behind(aggregate))]
    return list(dict.fromkeys(found))


def decide_sets(
    sets: Sequence[RowSet], selected: SelectedRows, minimum: int, *, tell_empty: bool
) -> Program[DecidedSets]:
    """Which groups have enough rows, and then, within those alone, which sets.

    Of smaller groups it is opened whether they have any rows, if `tell_empty` says so, and nothing else. Where it does
    not, an empty set within a group is as good as a small one: WHERE may have added one person to many rows.
    """
    tell_empty = tell_empty or minimum == 1
    bits, outside = yield from _size(selected, minimum)
    count = selected.groups.count

    enough = yield Compare(
        label="groups with enough rows", local=selected.counts, thresholds=np.full(count, minimum, np.int64), bits=bits
    )
    shown, below = np.flatnonzero(enough), np.flatnonzero(~enough)
    asked = below if tell_empty and minimum > 1 else below[:0]
    parts = [each for each in sets if each != ALL_ROWS and len(shown)]
    asked_parts = parts if tell_empty else []

    def some(table: "OwnerTable") -> NDArray[np.int64]:
        rows = selected.rows(table)
        told = enough[selected.groups.codes(rows)]
        left_out = np.array([int((told & ~each.mask(rows)).sum()) for each in asked_parts], np.int64)
        return np.concatenate([selected.counts(table)[asked], left_out])

    length = len(asked) + len(asked_parts)
    nonempty = np.zeros(0, bool)
    if length:
        nonempty = yield Compare(label="what is empty", local=some, thresholds=np.ones(length, np.int64), bits=bits)
    rows = np.where(enough, SHOWN, EMPTY if minimum == 1 else SMALL).astype(np.int8)
    rows[asked] = np.where(nonempty[: len(asked)], SMALL, EMPTY)
    if tell_empty:
        lacking = dict(zip(parts, nonempty[len(asked) :], strict=True))
        some_overlap = any(left_out and each.overlapping for each, left_out in lacking.items())
        parts = [each for each in parts if lacking[each] or (some_overlap and each.overlapping)]
    states = dict.fromkeys(sets, rows)
    if parts:
        states |= yield from _decide_within(parts, selected, rows, shown, minimum, bits, tell_empty=tell_empty)
    return DecidedSets(bits=bits, outside=outside, rows=rows, states=states)


def _size(selected: SelectedRows, minimum: int) -> Program[tuple[int, bool]]:
    """How many bits a count needs, and whether enough rows belong to no group."""

    def counts(table: "OwnerTable") -> NDArray[np.int64]:
        return np.array([len(selected.rows(table))] * len(ROW_BITS) + [selected.outside(table)], np.int64)

    thresholds = np.array([*(1 << bits for bits in ROW_BITS), minimum], np.int64)
    opened = yield Compare(label="how many rows", local=counts, thresholds=thresholds, bits=MAX_ROW_BITS)
    return (*ROW_BITS, MAX_ROW_BITS - 1)[int(opened[:-1].sum())] + 1, bool(opened[-1])


def _decide_within(
    sets: Sequence[RowSet],
    selected: SelectedRows,
    rows: States,
    shown: NDArray[np.int64],
    minimum: int,
    bits: int,
    *,
    tell_empty: bool,
) -> Program[dict[RowSet, States]]:
    """The states of sets in the groups that are shown."""
    chosen, others = chosen_first(sets), [each for each in sets if not each.chosen]
    if len(sets) * len(shown) > MAX_CELLS:
        raise ConfigError(
            f"the statement asks for {len(sets) * len(shown):,} counts, at most {MAX_CELLS:,} are possible; "
            "ask for fewer groups or aggregates at once"
        )

    count_parts = partial(
        count_own_parts,
        sets=[*chosen, *others],
        selected=selected,
        shown=shown,
        minimum=minimum,
        bits=bits,
        tell_empty=tell_empty,
    )
    by_name = condition_numbers(chosen)
    divided = [
        DividedRows(
            holds=(len(chosen) + place,), implied=tuple(by_name[name] for name in each.implied if name in by_name)
        )
        for place, each in enumerate(others)
    ]
    overlapping = [each.overlapping for each in chosen]
    states = yield from decide_conditions(overlapping, len(shown), count_parts, divided)
    return {each: filled_states(rows, shown, own) for each, own in zip((*chosen, *others), states, strict=True)}


def chosen_first(sets: Sequence[RowSet]) -> list[RowSet]:
    """Those that are chosen: by conditions, and then by having values."""
    return sorted((each for each in sets if each.chosen), key=lambda each: each.overlapping)


def condition_numbers(conditions: Sequence[RowSet]) -> dict[str, int]:
    """The places of those that one indicator tells."""
    return {
        each.nonzero[0]: number for number, each in enumerate(conditions) if len(each.nonzero) == 1 and not each.present
    }


def filled_states(rows: States, shown: NDArray[np.int64], states: States) -> States:
    """Those of all groups, with the states of the ones that are shown in their places."""
    filled = rows.copy()
    filled[shown] = states
    return filled
