"""χ², t and analysis of variance, from counts and moments that are opened anyway."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from winnow.analytics.stats.moments import Spread
from winnow.analytics.stats.opened_counts import OpenedCounts
from winnow.analytics.stats.plan import CategoryColumn, Grouping, NumberColumn, category_column, number_column
from winnow.analytics.stats.suppression import Key
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.core import ConfigError


@dataclass(frozen=True, kw_only=True)
class SignificanceTest:
    """A test of a column by the groups of another: `kind` is chi2, t or anova."""

    kind: str
    column: NumberColumn | CategoryColumn
    grouping: Grouping

    def result(self, counts: OpenedCounts, spreads: Mapping[Key, list[Spread | None]]) -> dict[str, Any]:
        by = self.grouping.columns[0].name
        told: dict[str, Any] = {"test": self.kind, "column": self.column.name, "by": by}
        if isinstance(self.column, CategoryColumn):
            rows, groups = len(self.column.values), len(self.grouping.labels)
            cells = counts.cells["n", self.column.name, by][:rows, :groups]
            if any(cell is None for cell in cells.flat):
                return {**told, "p": None, "reason": "a cell of the table has too few rows"}
            return {**told, **_chi2(cells.astype(np.float64))}
        found = spreads["n", self.column.name, by][: len(self.grouping.labels)]
        groups_told = {label: each for label, each in zip(self.grouping.labels, found, strict=True) if each is not None}
        told["groups"] = list(groups_told)
        if len(groups_told) < 2 or (self.kind == "t" and len(groups_told) != 2):
            return {**told, "p": None, "reason": "fewer than two groups have enough rows"}
        compute = _welch if self.kind == "t" else _anova
        return {**told, **compute(list(groups_told.values()))}


def read_tests(tests: tuple[str, ...], declaration: TableDeclaration) -> list[SignificanceTest]:
    """All tests but those of survival."""
    found = list[SignificanceTest]()
    for test in tests:
        kind, _, columns = test.partition(":")
        if kind == "survival":
            continue
        name, by = (each.strip() for each in columns.split(","))
        grouping = Grouping(columns=(category_column(declaration, by),))
        if kind == "t" and len(grouping.labels) != 2:
            raise ConfigError(f"{test}: a t test compares two groups; '{by}' has {len(grouping.labels)}: use anova")
        make = category_column if kind == "chi2" else number_column
        found.append(SignificanceTest(kind=kind, column=make(declaration, name), grouping=grouping))
    return found


def _chi2(table: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, Any]:
    """Pearson's χ² of independence, without a correction; empty rows and columns do not count."""
    from scipy.stats import chi2  # noqa: PLC0415 - a second to import

    table = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    if freedom <= 0:
        return {"p": None, "reason": "one of the columns has a single value"}
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True) / table.sum()
    statistic = float(((table - expected) ** 2 / expected).sum())
    return {"statistic": statistic, "freedom": freedom, "p": float(chi2.sf(statistic, freedom))}


def _welch(groups: list[Spread]) -> dict[str, Any]:
    """Welch's t test, two-sided: the groups may differ in variance."""
    from scipy.stats import t  # noqa: PLC0415

    one, other = groups
    errors = [each.sd**2 / each.n for each in groups]
    if not sum(errors):
        return {"p": None, "reason": "the column does not vary"}
    statistic = (one.mean - other.mean) / sqrt(sum(errors))
    freedom = sum(errors) ** 2 / sum(error**2 / (each.n - 1) for error, each in zip(errors, groups, strict=True))
    return {"statistic": statistic, "freedom": freedom, "p": float(2 * t.sf(abs(statistic), freedom))}


def _anova(groups: list[Spread]) -> dict[str, Any]:
    """F = (Σ n(m − M)²/(k − 1)) / (Σ (n − 1)s²/(N − k))."""
    from scipy.stats import f  # noqa: PLC0415

    rows = sum(each.n for each in groups)
    mean = sum(each.n * each.mean for each in groups) / rows
    between = sum(each.n * (each.mean - mean) ** 2 for each in groups)
    within = sum((each.n - 1) * each.sd**2 for each in groups)
    freedom = (len(groups) - 1, rows - len(groups))
    if not within:
        return {"p": None, "reason": "the column does not vary within groups"}
    statistic = (between / freedom[0]) / (within / freedom[1])
    return {"statistic": statistic, "freedom": list(freedom), "p": float(f.sf(statistic, *freedom))}
