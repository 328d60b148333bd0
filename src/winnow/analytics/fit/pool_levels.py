"""Levels of categories that too few rows have count as one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.fit.design import POOLED, Design, DesignCategory
from winnow.analytics.fit.fit_rows import Cell, FitRows
from winnow.analytics.program import Compare, Program
from winnow.core import ConfigError


def pool_levels(sample: FitRows, minimum: int) -> Program[FitRows]:
    """Levels with too few rows as one."""
    categories = category_columns(sample.design)
    if not categories:
        return sample
    enough = yield from compare_groups(sample, categories, minimum, "enough rows of each level")
    first = [with_pooled(column, passed) for column, passed in zip(categories, enough, strict=True)]
    again = yield from compare_groups(sample, first, minimum, "enough rows of pooled levels")
    merged = {
        old: column if passed.all() else _into_reference(column, passed)
        for column, passed, old in zip(first, again, categories, strict=True)
    }
    return with_categories(sample, merged)


def with_categories(sample: FitRows, merged: Mapping[DesignCategory, DesignCategory]) -> FitRows:
    """The sample with groups of levels that were merged, and their names."""
    factors = tuple(
        tuple(merged[each] if isinstance(each, DesignCategory) else each for each in term)
        for term in sample.design.factors
    )
    pooled = [
        f"{old.factor}[{label}]"
        for old, new in merged.items()
        for label in old.labels
        if label not in (*new.labels, POOLED)
    ]
    design = replace(sample.design, factors=factors)
    return replace(sample, design=design, pooled=(*sample.pooled, *pooled))


def category_columns(design: Design) -> list[DesignCategory]:
    return list(dict.fromkeys(each for term in design.factors for each in term if isinstance(each, DesignCategory)))


def compare_groups(
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


def with_pooled(column: DesignCategory, passed: NDArray[np.bool_]) -> DesignCategory:
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
        raise too_few_values(column)
    first, *others, last = column.groups
    return replace(column, groups=((*first, *last), *others), labels=column.labels[:-1])


def too_few_values(column: DesignCategory) -> ConfigError:
    return ConfigError(
        f"column '{column.factor.column}' has fewer than two values with enough rows; leave it out of the formula"
    )
