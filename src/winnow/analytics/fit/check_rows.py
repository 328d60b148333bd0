"""The first steps of every fit: are there enough rows, also of each level, and of each two levels together?

Nothing is summed over fewer rows than the minimum: levels of categories with too few rows (in a class of the response,
where it has classes) count as one, "other", or, if that is still too few, as the reference level. XᵀX counts rows with
two levels of different columns, so rows with a combination that too few have are left out. Products of levels with too
few rows are dropped.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import numpy as np

from winnow.analytics.fit.design import Design, DesignCategory, DesignColumn
from winnow.analytics.fit.fit_rows import FitRows
from winnow.analytics.fit.pool_levels import enough_rows, pool_levels
from winnow.analytics.fit.rare_combinations import leave_out_rare
from winnow.analytics.program import Compare, Program, Sum
from winnow.core import ConfigError

ROWS_A_TERM = 3
"""With fewer, sums of products say so much that rows could be worked out from them."""


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
    sample = yield from pool_levels(sample, minimum)
    if pairs:
        sample = yield from leave_out_rare(sample, minimum)
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
