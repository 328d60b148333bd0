"""COUNT(DISTINCT key): owners' identifiers are counted without being shown (`privacy/set_intersection/union_party.py`).

Whoever counts sees how many there are, few or not. So they are counted only where a single owner has as many different
ones as the minimum: then all have no fewer.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.intersect.intersect_question import identifiers
from winnow.analytics.program import Compare, CountDistinct, Local, Program, Sum
from winnow.analytics.sql.aggregate_values import Estimate
from winnow.analytics.sql.query_plan import DISTINCT, QueryPlan
from winnow.analytics.sql.selected_rows import SelectedRows
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import DataError

SIZE_BITS = tuple(range(6, 18))
"""An owner has fewer than 2**bits identifiers, for the smallest of these; with more they are too many to count."""
MAX_COUNTS = 100
"""Groups whose identifiers are counted, in one statement."""


def open_distinct(
    plan: QueryPlan, shown: Sequence[int], selected: SelectedRows, minimum: int
) -> Program[dict[tuple[str, int], Estimate]]:
    """By aggregate and group."""
    asked = [(name, group) for name in plan.identifiers for group in shown]
    if not asked:
        return {}
    if len(asked) > MAX_COUNTS:
        raise DataError(f"COUNT(DISTINCT …) of {len(asked):,} groups is too much; at most {MAX_COUNTS} can be counted")

    def sizes(table: OwnerTable) -> NDArray[np.int64]:
        return np.array([len(_identifiers(selected, name, group, table)) for name, group in asked], np.int64)

    largest = yield from _open_largest(sizes, len(asked), minimum)
    told = np.array(sorted(largest), np.int64)
    listed = yield Sum(
        label="identifiers", local=lambda table: sizes(table)[told], length=len(told), hidden=len(asked) - len(told)
    )
    found = dict.fromkeys(asked, Estimate(None))
    for place, total in zip(told.tolist(), listed, strict=True):
        name, group = asked[place]
        _, count = yield CountDistinct(
            label="different identifiers",
            local=partial(_identifiers, selected, name, group),
            most=min(largest[place], int(total)),
            identifiers=int(total),
            minimum=minimum,
        )
        found[name, group] = Estimate(int(count))
    return {
        (each.name, group): found[each.key, group]
        for each in plan.aggregates
        if each.function == DISTINCT and each.key is not None
        for group in shown
    }


def _open_largest(sizes: Local, asked: int, minimum: int) -> Program[dict[int, int]]:
    """By place among those asked for, where a single owner has as many identifiers as the minimum: the most that an
    owner may have.
    """
    thresholds = np.array([minimum, *(1 << bits for bits in SIZE_BITS)], np.int64)

    def reached(table: OwnerTable) -> NDArray[np.int64]:
        return (sizes(table)[:, None] >= thresholds).astype(np.int64).reshape(-1)

    ones = np.ones(asked * len(thresholds), np.int64)
    opened = yield Compare(label="identifiers at one owner", local=reached, thresholds=ones)
    found = np.asarray(opened, bool).reshape(asked, len(thresholds))
    told = np.flatnonzero(found[:, 0])
    if np.any(found[told, -1]):
        raise DataError(
            f"COUNT(DISTINCT …): an owner has {1 << SIZE_BITS[-1]:,} identifiers or more; ask for fewer rows"
        )
    return {int(place): (1 << SIZE_BITS[int(found[place, 1:].sum())]) - 1 for place in told}


def _identifiers(selected: SelectedRows, name: str, group: int, table: OwnerTable) -> list[str]:
    rows = selected.rows(table)
    mask = selected.groups.codes(rows) == group
    return identifiers(OwnerTable(declaration=rows.declaration, rows=rows.rows.filter(mask)), name)
