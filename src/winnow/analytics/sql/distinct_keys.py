"""COUNT(DISTINCT key): owners' identifiers are counted without being shown (`privacy/set_intersection/union_party.py`).

Whoever counts sees how many there are, few or not. So they are counted only where a single owner has as many different
ones as the minimum: then all have no fewer.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.intersect.intersect_question import identifiers
from winnow.analytics.program import Compare, CountDistinct, Program, Sum
from winnow.analytics.sql.aggregate_values import Estimate
from winnow.analytics.sql.owner_rows import SelectedRows
from winnow.analytics.sql.query_plan import DISTINCT, QueryPlan
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
    thresholds = np.array([minimum, *(1 << bits for bits in SIZE_BITS)], np.int64)

    def lists(table: OwnerTable) -> list[list[str]]:
        return [_identifiers(selected, name, group, table) for name, group in asked]

    def reached(table: OwnerTable) -> NDArray[np.int64]:
        sizes = np.array([len(each) for each in lists(table)])
        return (sizes[:, None] >= thresholds).astype(np.int64).reshape(-1)

    opened = yield Compare(
        label="identifiers at one owner", local=reached, thresholds=np.ones(len(asked) * len(thresholds), np.int64)
    )
    sizes = np.asarray(opened, bool).reshape(len(asked), len(thresholds))
    told = np.flatnonzero(sizes[:, 0])
    if np.any(sizes[told, -1]):
        raise DataError(
            f"COUNT(DISTINCT …): an owner has {1 << SIZE_BITS[-1]:,} identifiers or more; ask for fewer rows"
        )

    def totals(table: OwnerTable) -> NDArray[np.int64]:
        return np.array([len(each) for each in lists(table)], np.int64)[told]

    found = dict.fromkeys(asked, Estimate(None))
    listed = yield Sum(label="identifiers", local=totals, length=len(told), hidden=len(asked) - len(told))
    for place, total in zip(told, listed, strict=True):
        name, group = asked[place]
        most = (1 << SIZE_BITS[int(sizes[place, 1:].sum())]) - 1
        _, count = yield CountDistinct(
            label="different identifiers",
            local=partial(_identifiers, selected, name, group),
            most=min(most, int(total)),
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


def _identifiers(selected: SelectedRows, name: str, group: int, table: OwnerTable) -> list[str]:
    rows = selected.rows(table)
    mask = selected.groups.codes(rows) == group
    return identifiers(OwnerTable(declaration=rows.declaration, rows=rows.rows.filter(mask)), name)
