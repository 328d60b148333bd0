"""Counts and sums by group, in one secure sum of those that may be told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Program, Sum
from winnow.analytics.sql.query_plan import DISTINCT, SAMPLED, SPREADS, Argument, QueryAggregate
from winnow.analytics.sql.row_sets import DecidedSets, RowSet, counted_rows, sets_behind
from winnow.analytics.sql.selected_rows import QueryGroups, SelectedRows
from winnow.analytics.stats.local_sums import moment_sums
from winnow.analytics.stats.moments import fixed, fraction_bits

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

Opened: TypeAlias = Mapping[tuple["Summand", int], int]
"""By summand and group."""
PAIR_SUMS = 5


@dataclass(frozen=True, kw_only=True)
class Summand:
    """What is summed by group: rows of a set; Σx of whole numbers; Σu or Σu² in units of the range (|u| ≤ ½); of two
    arguments Σu, Σv, Σu², Σv², Σuv.
    """

    rows: RowSet
    arguments: tuple[Argument, ...] = ()
    power: int = 0
    """0: rows, or Σx; else the power of u; of two arguments the place among the five."""

    def local(self, rows: "OwnerTable", groups: QueryGroups, bits: int) -> NDArray[np.int64]:
        codes = groups.codes(rows)
        if not self.arguments:
            return np.bincount(codes[self.rows.mask(rows)], minlength=groups.count)
        if len(self.arguments) == 2:
            return fixed(self._pair(rows, codes, groups.count), bits)
        (argument,) = self.arguments
        if self.power:
            return fixed(moment_sums(argument.column, groups, rows)[self.power - 1, : groups.count], bits)
        mask, sums = self.rows.mask(rows), np.zeros(groups.count, np.int64)
        np.add.at(sums, codes[mask], rows.numbers(argument.name)[mask].astype(np.int64))
        return sums

    def _pair(self, rows: "OwnerTable", codes: NDArray[np.int64], count: int) -> NDArray[np.float64]:
        mask = self.rows.mask(rows)
        u, v = (each.column.units(rows)[mask] for each in self.arguments)
        weights = (u, v, u * u, v * v, u * v)[self.power]
        return np.bincount(codes[mask], weights=weights, minlength=count).astype(np.float64)


def count_of(aggregate: QueryAggregate) -> Summand:
    return Summand(rows=counted_rows(aggregate))


def exact_total(argument: Argument, count_bits: int) -> bool:
    """Whether Σx fits a sum of whole numbers as it is."""
    largest = max(abs(argument.column.low), abs(argument.column.high), 1.0)
    return argument.column.whole and int(largest).bit_length() + count_bits <= 61


def summands_of(aggregate: QueryAggregate, count_bits: int) -> list[Summand]:
    """What an aggregate is worked out from."""
    if aggregate.function == DISTINCT:
        return []
    rows = count_of(aggregate)
    if aggregate.function == "corr":
        pair = [Summand(rows=rows.rows, arguments=aggregate.arguments, power=each) for each in range(PAIR_SUMS)]
        return [rows, *pair]
    powers = {"sum": (1,), "avg": (1,), **dict.fromkeys(SPREADS, (1, 2))}.get(aggregate.function, ())
    found = [Summand(rows=rows.rows, arguments=aggregate.arguments, power=each) for each in powers]
    if aggregate.function in ("sum", "avg") and exact_total(aggregate.arguments[0], count_bits):
        found = [Summand(rows=rows.rows, arguments=aggregate.arguments)]
    return [rows, *found]


def open_sums(
    aggregates: Sequence[QueryAggregate],
    shown: Sequence[int],
    selected: SelectedRows,
    decided: DecidedSets,
    count_bits: int,
    *,
    sampled: bool,
) -> Program[tuple[Opened, dict[str, list[int]]]]:
    """What is opened, and the groups in which each aggregate is told. A sample's have sums of their own
    (`sampled_sums.py`).
    """
    told: dict[str, list[int]] = {}
    wanted: dict[tuple[Summand, int], None] = {}
    for aggregate in aggregates:
        told[aggregate.name] = [group for group in shown if decided.told(sets_behind(aggregate), group)]
        if sampled and aggregate.function in SAMPLED:
            continue
        for summand in summands_of(aggregate, count_bits):
            wanted.update(dict.fromkeys((summand, group) for group in told[aggregate.name]))
    bits, asked = fraction_bits(count_bits), list(wanted)
    summands = list(dict.fromkeys(summand for summand, _ in asked))
    places = np.array([(summands.index(summand), group) for summand, group in asked], np.int64).reshape(-1, 2)

    def sums(table: "OwnerTable") -> NDArray[np.int64]:
        rows = selected.rows(table)
        return np.array([each.local(rows, selected.groups, bits) for each in summands], np.int64)[tuple(places.T)]

    hidden = len(aggregates) * len(shown) - sum(len(each) for each in told.values()) + decided.small_groups
    opened = list((yield Sum(label="sums", local=sums, length=len(asked), hidden=hidden))) if asked else []
    return dict(zip(asked, (int(each) for each in opened), strict=True)), told
