"""The rows that a model is fitted to, and the first steps of every fit: are there enough of them, also of each level?

Nothing is summed over fewer rows than the minimum: levels of categories with too few rows (in a class of the response,
where it has classes) count as one, "other", or, if that is still too few, as the reference level. Products of levels
with too few rows are dropped.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.fit.design import POOLED, Design, DesignCategory, DesignColumn, Matrix
from winnow.analytics.program import Compare, Program, Sum
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import ConfigError

Response = Callable[[OwnerTable], NDArray[np.float64]]
"""The response of each row, NaN where it is missing; of classes their numbers."""
Cell = tuple[str, tuple[int, ...]]
"""A column and some of its levels."""


@dataclass(frozen=True)
class FitRows:
    """A design, a response, and how many complete rows there are of each class (one number without classes)."""

    design: Design
    response: Response | None
    classes: int
    counts: tuple[int, ...] = ()
    pooled: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return sum(self.counts)

    def complete(self, table: OwnerTable) -> tuple[Matrix, NDArray[np.float64]]:
        """The matrix and the response (zeros if there is none) of rows with nothing missing."""
        matrix = self.design.matrix(table)
        response = np.zeros(len(table)) if self.response is None else self.response(table)
        kept = np.isfinite(matrix).all(axis=1) & np.isfinite(response)
        return matrix[kept], response[kept]

    def class_counts(self, table: OwnerTable) -> NDArray[np.int64]:
        """Complete rows of each class."""
        _, response = self.complete(table)
        return np.bincount(self._class_of(response), minlength=self.classes)

    def level_counts(self, table: OwnerTable, cells: Sequence[Sequence[Cell]]) -> NDArray[np.int64]:
        """Complete rows of each class (second) that have all the levels of a cell (first)."""
        matrix = self.design.matrix(table)
        response = np.zeros(len(table)) if self.response is None else self.response(table)
        kept = np.isfinite(matrix).all(axis=1) & np.isfinite(response)
        classes, codes = self._class_of(response[kept]), {}
        for column in dict.fromkeys(column for cell in cells for column, _ in cell):
            codes[column] = table.codes(column)[kept]
        found = [
            np.bincount(
                classes[np.all([np.isin(codes[column], levels) for column, levels in cell], axis=0)],
                minlength=self.classes,
            )
            for cell in cells
        ]
        return np.stack(found)

    def _class_of(self, response: NDArray[np.float64]) -> NDArray[np.int64]:
        return response.astype(np.int64) if self.classes > 1 else np.zeros(len(response), np.int64)


def checked_sample(sample: FitRows, minimum: int, class_names: tuple[str, ...] = ()) -> Program[FitRows]:
    """The sample with its counts, its rare levels pooled and its rare products dropped."""
    enough = yield Compare(
        label="enough rows",
        local=sample.class_counts,
        thresholds=np.full(sample.classes, minimum),
    )
    if not enough.all():
        few = f" with the response {class_names[int(np.argmin(enough))]}" if class_names else ""
        raise ConfigError(f"fewer than {minimum} complete rows{few} in all; that is too few for a fit")
    sample = yield from _pool_levels(sample, minimum)
    sample = yield from _drop_products(sample, minimum)
    counts = yield Sum(
        label="complete rows",
        local=sample.class_counts,
        length=sample.classes,
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
