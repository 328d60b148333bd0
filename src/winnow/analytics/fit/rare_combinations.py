"""Rows with a combination of levels that too few have are left out: XᵀX counts the rows of every two levels."""

from dataclasses import replace
from functools import partial
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.fit.design import POOLED, Design, DesignCategory
from winnow.analytics.fit.fit_rows import Cell, FitRows
from winnow.analytics.fit.pool_levels import (
    category_columns,
    compare_groups,
    too_few_values,
    with_categories,
    with_pooled,
)
from winnow.analytics.program import Compare, Program
from winnow.core import ConfigError

MERGES = 20
"""Levels that become rare where rows are left out are merged, which is tried so often."""


def leave_out_rare(sample: FitRows, minimum: int) -> Program[FitRows]:
    """Without rows that have a combination of levels with too few others; levels that this makes rare are merged."""
    for _ in range(MERGES):
        sample = yield from _without_rare(replace(sample, rare=()), minimum)
        if not sample.rare:
            return sample
        enough = yield Compare(
            label="enough rows beside rare combinations",
            local=sample.class_counts,
            thresholds=np.full(sample.classes, minimum),
        )
        if not enough.all():
            break
        columns = category_columns(sample.design)
        passed = yield from compare_groups(sample, columns, minimum, "enough rows of each level")
        if all(each.all() for each in passed):
            return sample
        merged = {old: _merged(old, each) for old, each in zip(columns, passed, strict=True)}
        sample = with_categories(sample, merged)
    raise _too_rare(minimum)


def _without_rare(sample: FitRows, minimum: int) -> Program[FitRows]:
    """Rows that are left out may make further combinations rare."""
    cells = _combinations_of_levels(sample.design)
    while cells:
        enough = yield Compare(
            label="enough rows of each combination",
            local=partial(sample.cell_counts, cells),
            thresholds=np.full(len(cells), minimum),
        )
        below = [cell for cell, passed in zip(cells, enough, strict=True) if not passed]
        if not below:
            break
        some = yield Compare(
            label="combinations without rows",
            local=partial(sample.cell_counts, below),
            thresholds=np.ones(len(below), np.int64),
        )
        rare = [cell for cell, passed in zip(below, some, strict=True) if passed]
        if not rare:
            break
        sample, empty = replace(sample, rare=(*sample.rare, *rare)), {*below}
        cells = [cell for cell in cells if cell not in empty]
    return sample


def _merged(column: DesignCategory, passed: NDArray[np.bool_]) -> DesignCategory:
    """Groups with too few rows as one with the pooled ones; a single one joins the first."""
    if passed.all():
        return column
    together = passed & (np.array(column.labels) != POOLED)
    if (~together).sum() > 1:
        return with_pooled(column, together)
    place = int(np.argmin(together))
    if len(column.groups) < 3:
        raise too_few_values(column)
    joined = 0 if place else 1
    groups, labels = list(column.groups), list(column.labels)
    groups[joined] = (*groups[joined], *groups[place])
    del groups[place], labels[place]
    return replace(column, groups=tuple(groups), labels=tuple(labels))


def _too_rare(minimum: int) -> ConfigError:
    return ConfigError(
        f"too many combinations of values have fewer than {minimum} rows; use fewer categories, or coarser ones"
    )


def _combinations_of_levels(design: Design) -> list[tuple[Cell, ...]]:
    """Every combination whose rows an entry of XᵀX counts or, for the reference levels, lets work out."""
    single = [{(column, place)} for column in category_columns(design) for place in range(len(column.groups))]
    products = [
        set(zip(columns, places, strict=True))
        for columns in ([each for each in term if isinstance(each, DesignCategory)] for term in design.factors)
        if len(columns) > 1
        for places in product(*(range(len(each.groups)) for each in columns))
    ]
    joined = dict.fromkeys(frozenset(one | other) for one, other in combinations([*single, *products], 2))
    return [
        tuple((column.factor.column, column.groups[place]) for column, place in sorted(cell, key=_column_and_place))
        for cell in joined
        if len({column.factor.column for column, _ in cell}) == len(cell)
    ]


def _column_and_place(cell: tuple[DesignCategory, int]) -> tuple[str, int]:
    return cell[0].factor.column, cell[1]
