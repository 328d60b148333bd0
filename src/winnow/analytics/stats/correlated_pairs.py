"""Which two columns may be correlated: sums over rows that have both values are opened beside those of each column.

Rows with one value but not the other must be none, or enough: what they sum to follows by subtraction.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Compare, Program
from winnow.analytics.stats.moments import Pair
from winnow.analytics.stats.plan import NumberColumn

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable


def correlated_pairs(columns: Sequence[NumberColumn], minimum: int, bits: int) -> Program[list[Pair]]:
    """Pairs of columns, without those that lack a value in the same rows but for a few."""
    pairs = list(combinations(columns, 2))
    unsure = [pair for pair in pairs if pair[0].missing or pair[1].missing]
    if not unsure:
        return pairs
    asked = 2 * len(unsure)
    enough = yield Compare(
        label="rows with one of two values",
        local=lambda table: _rows_with_one(unsure, table),
        thresholds=np.full(asked, minimum, np.int64),
        bits=bits,
    )
    below = np.flatnonzero(~enough)
    few = np.zeros(asked, bool)
    if len(below):
        few[below] = yield Compare(
            label="rows with one of two values, if any",
            local=lambda table: _rows_with_one(unsure, table)[below],
            thresholds=np.ones(len(below), np.int64),
            bits=bits,
        )
    hidden = {pair for pair, either in zip(unsure, few.reshape(-1, 2).any(axis=1), strict=True) if either}
    return [pair for pair in pairs if pair not in hidden]


def _rows_with_one(pairs: Sequence[Pair], table: "OwnerTable") -> NDArray[np.int64]:
    """Of each pair, rows that have the first value alone, and those that have the second alone."""
    present = {
        column: ~np.isnan(column.units(table)) for column in dict.fromkeys(each for pair in pairs for each in pair)
    }
    counts = [((present[u] & ~present[v]).sum(), (~present[u] & present[v]).sum()) for u, v in pairs]
    return np.array(counts, np.int64).reshape(-1)
