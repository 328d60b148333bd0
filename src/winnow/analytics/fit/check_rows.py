"""The first steps of every fit: are there enough rows, also of each level, and of each two levels together?

Nothing is summed over fewer rows than the minimum: levels of categories with too few rows (in a class of the response,
where it has classes) count as one, "other", or, if that is still too few, as the reference level. XᵀX counts rows with
two levels of different columns, so rows with a combination that too few have are left out. Products of levels with too
few rows are dropped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.fit.design import POOLED, Design, DesignCategory, DesignColumn
from winnow.analytics.fit.fit_rows import Cell, FitRows
from winnow.analytics.program import Compare, Program, Sum
from winnow.core import ConfigError

ROWS_A_TERM = 3
"""With fewer, sums of products say so much that rows could be worked out from them."""
RARE_PASSES = 6
"""Rows that are left out may make further combinations rare; so often that is tried."""


def checked_sample(
    sample: FitRows, minimum: int, class_names: tuple[str, ...] = (), *, pairs: bool = True
) -> Program[FitRows]:
    """The sample with its counts, its rare levels pooled, and without rare products and (where sums over pairs of
    columns follow) rows with a rare combination of levels.
    """
    enough = yield Compare(
        label="enough rows",
        local=sample.class_counts,
        thresholds=np.full(sample.classes, minimum),
    )
    if not enough.all():
        few = f" with the response {class_names[int(np.argmin(enough))]}" if class_names else ""
        raise ConfigError(f"fewer than {minimum} complete rows{few} in all; that is too few for a fit")
    sample = yield from _pool_levels(sample, minimum)
    if pairs:
        sample = yield from _leave_out_rare(sample, minimum)
    sample = yield from _drop_products(sample, minimum)
    counts = yield Sum(
        label="complete rows",
        local=sample.class_counts,
        length=sample.classes,
    )
    terms = len(sample.design.columns)
    if counts.sum() < ROWS_A_TERM * terms:
        raise ConfigError(
            f"{counts.sum():,} complete rows are too few for {terms:,} terms; {ROWS_A_TERM} each are needed"
        )
    return replace(sample, counts=tuple(int(each) for each in counts))


def _pool_levels(sample: FitRows, minimum: int) -> Program[FitRows]:
    """Levels with too few rows as one."""
    categories = _categories(sample.design)
    if not categories:
        return sample
    enough = yield from _compare_groups(sample, categories, minimum, "enough rows of each level")
    first = [_with_pooled(column, passed) for column, passed in zip(categories, enough, strict=True)]
    again = yield from _compare_groups(sample, first, minimum, "enough rows of pooled levels")
    final, pooled = {}, []
    for column, passed, old in zip(first, again, categories, strict=True):
        merged = column if passed.all() else _into_reference(column, passed)
        final[old] = merged
        if len(merged.groups) < len(old.groups):
            kept = {*merged.labels}
            pooled += [f"{column.factor}[{label}]" for label in old.labels if label not in kept]
    factors = tuple(
        tuple(final[column] if isinstance(column, DesignCategory) else column for column in term)
        for term in sample.design.factors
    )
    return replace(sample, design=replace(sample.design, factors=factors), pooled=tuple(pooled))


def _categories(design: Design) -> list[DesignCategory]:
    return list(dict.fromkeys(each for term in design.factors for each in term if isinstance(each, DesignCategory)))


def _compare_groups(
    sample: FitRows, columns: list[DesignCategory], minimum: int, label: str
) -> Program[list[NDArray[np.bool_]]]:
    """For each column, which of its groups of levels have enough rows in every class."""

    cells = [[(column.factor.column, group)] for column in columns for group in column.groups]
    passed = yield from enough_rows(sample, cells, minimum, label)
    ends = np.cumsum([len(column.groups) for column in columns])
    return np.split(passed.all(axis=1), ends[:-1])


def enough_rows(
    sample: FitRows, cells: Sequence[Sequence[Cell]], minimum: int, label: str
) -> Program[NDArray[np.bool_]]:
    """Whether there are enough complete rows of each cell (first) and class (second)."""
    bits = yield Compare(
        label=label,
        local=lambda table: sample.level_counts(table, cells).reshape(-1),
        thresholds=np.full(len(cells) * sample.classes, minimum),
    )
    return bits.astype(bool).reshape(len(cells), sample.classes)


def _with_pooled(column: DesignCategory, passed: NDArray[np.bool_]) -> DesignCategory:
    """Groups that passed, and all others as one last group."""
    if passed.all():
        return column
    kept = [place for place, good in enumerate(passed) if good]
    rest = tuple(level for place, good in enumerate(passed) if not good for level in column.groups[place])
    groups = (*(column.groups[place] for place in kept), rest)
    return replace(column, groups=groups, labels=(*(column.labels[place] for place in kept), POOLED))


def _into_reference(column: DesignCategory, passed: NDArray[np.bool_]) -> DesignCategory:
    """The last group, still too few, joins the first."""
    if len(column.groups) < 3 or not passed[:-1].all():
        raise ConfigError(
            f"column '{column.factor.column}' has fewer than two values with enough rows; leave it out of the formula"
        )
    first, *others, last = column.groups
    return replace(column, groups=((*first, *last), *others), labels=column.labels[:-1])


def _leave_out_rare(sample: FitRows, minimum: int) -> Program[FitRows]:
    """Without rows that fewer than `minimum` others share a combination of levels with; that may make others rare."""
    cells = _combinations_of_levels(sample.design)
    if not cells:
        return sample
    for _ in range(RARE_PASSES):
        enough = yield Compare(
            label="enough rows of each combination",
            local=partial(sample.cell_counts, cells),
            thresholds=np.full(len(cells), minimum),
        )
        below = [cell for cell, passed in zip(cells, enough, strict=True) if not passed]
        if not below:
            return sample
        some = yield Compare(
            label="combinations without rows",
            local=partial(sample.cell_counts, below),
            thresholds=np.ones(len(below), np.int64),
        )
        rare = [cell for cell, passed in zip(below, some, strict=True) if passed]
        if not rare:
            return sample
        sample = replace(sample, rare=(*sample.rare, *rare))
        enough = yield Compare(
            label="enough rows beside rare combinations",
            local=sample.class_counts,
            thresholds=np.full(sample.classes, minimum),
        )
        levels = yield from _compare_groups(sample, _categories(sample.design), minimum, "enough rows of each level")
        if not enough.all() or not all(passed.all() for passed in levels):
            break
    raise ConfigError(
        f"too many combinations of values have fewer than {minimum} rows; use fewer categories, or coarser ones"
    )


def _combinations_of_levels(design: Design) -> list[tuple[Cell, ...]]:
    """Every combination whose rows an entry of XᵀX counts or, for the reference levels, lets work out."""
    single = [{(column, place)} for column in _categories(design) for place in range(len(column.groups))]
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


def _drop_products(sample: FitRows, minimum: int) -> Program[FitRows]:
    """Products of levels with too few rows are left out; so are those from which such a cell could be worked out."""
    terms = {
        number: [column for column in term if isinstance(column, DesignCategory)]
        for number, term in enumerate(sample.design.factors)
    }
    places = [
        (number, place)
        for number, columns in terms.items()
        if len(columns) > 1
        for place in product(*(range(len(each.groups)) for each in columns))
    ]
    if not places:
        return sample
    cells = [
        [(column.factor.column, column.groups[at]) for column, at in zip(terms[number], place, strict=True)]
        for number, place in places
    ]
    passed = yield from enough_rows(sample, cells, minimum, "enough rows of each product")
    good = {place: bool(cells.all()) for place, cells in zip(places, passed, strict=True)}
    dropped = [
        column.name
        for column in sample.design.columns
        if len(terms[column.term]) > 1 and not _surrounded(sample.design, column, good)
    ]
    return replace(sample, design=replace(sample.design, dropped=frozenset(dropped)))


def _surrounded(design: Design, column: DesignColumn, good: Mapping[tuple[int, tuple[int, ...]], bool]) -> bool:
    """Whether the product's cell, and all that differ from it by reference levels, have enough rows."""
    factors = zip(column.product, design.factors[column.term], strict=True)
    levels = [at + 1 for at, factor in factors if isinstance(factor, DesignCategory)]
    return all(good[column.term, cell] for cell in product(*((0, level) for level in levels)))
