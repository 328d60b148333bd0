"""Means and spreads owner by owner, where all of them allow that."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Compare, Program, Sum
from winnow.analytics.question import MergedTerms
from winnow.analytics.stats.local_sums import moment_sums
from winnow.analytics.stats.moments import fixed, fraction_bits, spread
from winnow.analytics.stats.plan import EVERYBODY, NumberColumn

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable


def open_owner_statistics(
    columns: tuple[NumberColumn, ...], terms: MergedTerms, count_bits: int
) -> Program[dict[str, Any]]:
    """n, mean and sd of each column at each owner; None where it has too few rows.

    Totals are told as well, so an owner is never hidden alone: the next one with enough rows is hidden along with it.
    """
    if not columns:
        return {owner: {} for owner in terms.owners}
    bits = fraction_bits(count_bits)

    def rows(table: "OwnerTable") -> NDArray[np.int64]:
        return np.array([(~np.isnan(column.units(table))).sum() for column in columns], np.int64)

    def sums(table: "OwnerTable") -> NDArray[np.int64]:
        moments = [fixed(moment_sums(column, EVERYBODY, table)[:, 0], bits) for column in columns]
        cells: NDArray[np.int64] = np.c_[rows(table), moments].reshape(-1)
        return cells

    thresholds = np.full(len(columns), terms.minimum, np.int64)
    enough = yield Compare(
        label="owners with enough rows", local=rows, thresholds=thresholds, bits=count_bits, per_owner=True
    )
    shown = enough.reshape(len(terms.owners), len(columns)).copy()
    for column in np.flatnonzero((~shown).any(axis=0) & shown.any(axis=0)):
        after = np.roll(np.arange(len(shown)), -int(np.flatnonzero(~shown[:, column])[0]))
        shown[next(owner for owner in after if shown[owner, column]), column] = False
    opened = yield Sum(
        label="moments by owner",
        local=sums,
        length=3 * len(columns),
        per_owner=True,
        shown=np.repeat(shown, 3, axis=1),
        hidden=int((~shown).sum()),
    )
    cells = opened.reshape(len(terms.owners), len(columns), 3)

    def told(owner: int, column: int) -> dict[str, Any] | None:
        if not shown[owner, column]:
            return None
        n, first, second = cells[owner, column]
        return vars(spread(columns[column], n, first, second, bits))

    return {
        owner: {column.name: told(place, number) for number, column in enumerate(columns)}
        for place, owner in enumerate(terms.owners)
    }
