"""Which rows stand behind each number of a statement, and whether they are enough.

Every number of a group is told of a set of rows: COUNT(*) of all, COUNT(x) and SUM(x) of those where x is not NULL,
SUM(CASE …) also of those where it is not 0. A set with 1 … minimum − 1 rows is hidden. So is one that the statement
chooses by a condition (FILTER, CASE and the like) if it differs from another by so few: COUNT(*) − COUNT(*) FILTER (…)
would tell of them. Of two such sets the later one in the statement is hidden.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Compare, Local, Program
from winnow.analytics.sql.owner_rows import SelectedRows
from winnow.analytics.sql.query_plan import SEARCHES, QueryAggregate, QueryPlan
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
    """Whether a condition of the statement chooses them."""

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
class SelectionSize:
    """After a first look: every count is below 2**bits; which sets are all rows; whether rows belong to no group."""

    bits: int
    complete: frozenset[RowSet]
    outside: bool


@dataclass(frozen=True, kw_only=True)
class DecidedSets:
    """States of sets by group."""

    states: dict[RowSet, NDArray[np.int8]]
    rows: NDArray[np.int8]

    def told(self, sets: Iterable[RowSet], group: int) -> bool:
        """Whether a number that is made of these sets may be told."""
        return all(self.states[each][group] != SMALL for each in sets)

    @property
    def small_groups(self) -> int:
        return int((self.rows == SMALL).sum())


def counted_rows(aggregate: QueryAggregate) -> RowSet:
    """The rows that an aggregate is about."""
    return RowSet(
        present=tuple(each.name for each in aggregate.arguments),
        chosen=any(each.conditional for each in aggregate.arguments),
    )


def sets_behind(aggregate: QueryAggregate) -> list[RowSet]:
    """The sets that must be large enough, or empty, for an aggregate to be told."""
    found = [counted_rows(aggregate)]
    if aggregate.function not in (*SEARCHES, "count"):
        found += [RowSet(nonzero=(each.name,), chosen=True) for each in aggregate.arguments if each.conditional]
    return found


def sets_of(plan: QueryPlan) -> list[RowSet]:
    """Of all numbers of a statement, in its order; all rows first."""
    found = [ALL_ROWS, *(each for aggregate in plan.aggregates for each in sets_behind(aggregate))]
    return list(dict.fromkeys(found))


def first_look(sets: Sequence[RowSet], selected: SelectedRows) -> Program[SelectionSize]:
    """One comparison: how large the table is, and which sets leave out no row."""

    def counts(table: "OwnerTable") -> NDArray[np.int64]:
        rows = selected.rows(table)
        left_out = [int((~each.mask(rows)).sum()) for each in sets]
        return np.array([len(rows)] * len(ROW_BITS) + [selected.outside(table), *left_out], np.int64)

    thresholds = np.r_[[1 << bits for bits in ROW_BITS], np.ones(len(sets) + 1, np.int64)]
    opened = yield Compare(label="what is empty", local=counts, thresholds=thresholds, bits=MAX_ROW_BITS)
    larger, rest = int(opened[: len(ROW_BITS)].sum()), opened[len(ROW_BITS) :]
    complete = frozenset(each for each, some in zip(sets, rest[1:], strict=True) if not some)
    return SelectionSize(bits=(*ROW_BITS, MAX_ROW_BITS - 1)[larger] + 1, complete=complete, outside=bool(rest[0]))


def decide_sets(
    sets: Sequence[RowSet], selected: SelectedRows, look: SelectionSize, minimum: int
) -> Program[DecidedSets]:
    """Two comparisons: of each set, and of what chosen ones leave out, whether it is empty, small or large enough."""
    chosen = [each for each in sets if each not in look.complete and each.chosen]
    parts = [*chosen, *(each for each in sets if each not in look.complete and not each.chosen)]
    pairs = list(permutations(range(len(chosen)), 2))
    shape = (1 + len(parts) + len(chosen) + len(pairs), selected.groups.count)
    if shape[0] * shape[1] > MAX_CELLS:
        raise ConfigError(
            f"the statement asks for {shape[0] * shape[1]:,} counts, at most {MAX_CELLS:,} are possible; "
            "ask for fewer groups or aggregates at once"
        )

    def counts(table: "OwnerTable") -> NDArray[np.int64]:
        rows = selected.rows(table)
        codes, masks = selected.groups.codes(rows), [each.mask(rows) for each in parts]
        found = [np.ones(len(rows), bool), *masks, *(~each for each in masks[: len(chosen)])]
        found += [masks[one] & ~masks[other] for one, other in pairs]
        return np.concatenate([np.bincount(codes[each], minlength=shape[1]) for each in found])

    states = (yield from _states(counts, shape[0] * shape[1], minimum, look.bits)).reshape(shape)
    own, left_out, between = np.split(states[1:], np.cumsum([len(parts), len(chosen)]))
    decided = dict.fromkeys(sets, states[0]) | dict(zip(parts, own, strict=True))
    for place, each in enumerate(chosen):
        hidden = left_out[place] == SMALL
        for other in range(place):
            close = [between[pairs.index(pair)] == SMALL for pair in ((place, other), (other, place))]
            hidden |= (close[0] | close[1]) & (decided[chosen[other]] != SMALL)
        decided[each] = np.where(hidden, SMALL, decided[each]).astype(np.int8)
    return DecidedSets(states=decided, rows=states[0])


def _states(counts: Local, length: int, minimum: int, bits: int) -> Program[States]:
    """Of each count: none, fewer than `minimum`, or enough. Only those bits are opened."""
    enough = yield Compare(
        label="sets with enough rows", local=counts, thresholds=np.full(length, minimum, np.int64), bits=bits
    )
    states = np.where(enough, SHOWN, EMPTY).astype(np.int8)
    below = np.flatnonzero(~enough)
    if len(below) and minimum > 1:
        thresholds = np.ones(len(below), np.int64)
        some = yield Compare(
            label="sets without rows", local=lambda table: counts(table)[below], thresholds=thresholds, bits=bits
        )
        states[below] = np.where(some, SMALL, EMPTY)
    return states
