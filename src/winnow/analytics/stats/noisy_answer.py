"""What noisy cells say, each number with the half width of its 95 % interval.

An interval covers what noise does to the number, not what another sample of rows would: it holds the statistic of the
pooled rows, clipped to bounds, 95 times in 100.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.stats.counted_cells import Edges, key_of
from winnow.analytics.stats.plan import CategoryColumn, NumberColumn, StatisticsPlan
from winnow.analytics.stats.suppression import TOTAL, Key

NORMAL_95 = 1.959964


@dataclass(frozen=True)
class NoisyCells:
    """Values by category and group, and the standard deviation of the noise in each."""

    values: NDArray[np.float64]
    errors: NDArray[np.float64]

    def cell(self, row: int, group: int) -> tuple[float, float]:
        """One cell; over all groups where the group is TOTAL."""
        if group != TOTAL:
            return float(self.values[row, group]), float(self.errors[row, group])
        return float(self.values[row].sum()), sqrt(float((self.errors[row] ** 2).sum()))

    def without_last(self, group: int) -> tuple[float, float]:
        """All categories of a group together but the last, which is that of missing values."""
        cells = [self.cell(row, group) for row in range(len(self.values) - 1)]
        return sum(value for value, _ in cells), sqrt(sum(error**2 for _, error in cells))


@dataclass(kw_only=True)
class NoisyStatistics:
    """The columns of an answer; None where the noisy count is below the minimum."""

    plan: StatisticsPlan
    edges: Edges
    cells: Mapping[Key, NoisyCells]
    minimum: int
    hidden: int = field(default=0)

    def columns(self) -> dict[str, dict[str, Any]]:
        told = {column.name: self._number(column) for column in self.plan.numbers}
        told |= {column.name: self._category(column) for column in self.plan.categories}
        return {name: told[name] for name in self.plan.order}

    def _number(self, column: NumberColumn) -> dict[str, Any]:
        answer: dict[str, Any] = {"type": "number", "bounds": [column.low, column.high]}
        if self.edges:
            answer["edges"] = self.edges[column.name].tolist()
        return {**answer, **self._by_group(lambda group: self._number_cell(column, group))}

    def _number_cell(self, column: NumberColumn, group: int) -> dict[str, Any]:
        present = self.cells[key_of("rows", column, self.plan.grouping)]
        rows = present.cell(0, group)
        told = {**self._told("n", rows), **self._told("missing", present.cell(1, group))}
        moments = self.cells[key_of("moments", column, self.plan.grouping)]
        sums = (moments.cell(0, group), moments.cell(1, group))
        told |= NO_SPREAD if told["n"] is None else noisy_spread(column, rows, *sums)
        if self.edges:
            bins = self.cells[key_of("bins", column, self.plan.grouping)]
            cells = [self._told("n", bins.cell(row, group)) for row in range(len(bins.values))]
            told["histogram"] = [cell["n"] for cell in cells]
            told["histogram_error"] = NORMAL_95 * bins.cell(0, group)[1]
        return told

    def _category(self, column: CategoryColumn) -> dict[str, Any]:
        values = self.cells[key_of("rows", column, self.plan.grouping)]

        def told(group: int) -> dict[str, Any]:
            cells = [self._told("n", values.cell(row, group))["n"] for row in range(len(values.values))]
            *counts, other, _ = cells
            return {
                **self._told("n", values.without_last(group)),
                **self._told("missing", values.cell(len(cells) - 1, group)),
                "counts": counts,
                "other": other,
                "counts_error": NORMAL_95 * values.cell(0, group)[1],
            }

        return {"type": "category", "values": list(column.values), **self._by_group(told)}

    def _told(self, name: str, cell: tuple[float, float]) -> dict[str, Any]:
        value, error = cell
        if value < self.minimum:
            self.hidden += 1
        return {name: round(value) if value >= self.minimum else None, f"{name}_error": NORMAL_95 * error}

    def _by_group(self, told: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
        return {"all": told(TOTAL), "groups": {label: told(at) for at, label in enumerate(self.plan.grouping.labels)}}


NO_SPREAD = dict.fromkeys(("mean", "mean_error", "sd", "sd_error"))


def noisy_spread(
    column: NumberColumn, rows: tuple[float, float], first: tuple[float, float], second: tuple[float, float]
) -> dict[str, Any]:
    """Mean and sd from noisy sums, with errors to first order (delta method): for m = s₁/n and v = s₂/n − m²,

    n²·var m = σ₁² + m²σ₀²,   n²·var v = σ₂² + 4m²σ₁² + (s₂/n − 2m²)²σ₀²,   var √v = var v/(4v).
    """
    (n, error_n), (one, error_one), (two, error_two) = rows, first, second
    mean = min(0.5, max(-0.5, one / n))
    raw = two / n
    variance = max(0.0, min(0.25, raw - mean**2))
    mean_error = sqrt(error_one**2 + (mean * error_n) ** 2) / n
    slopes = (error_two, 2 * mean * error_one, (raw - 2 * mean**2) * error_n)
    variance_error = sqrt(sum(each**2 for each in slopes)) / n
    sd, reach = sqrt(variance), NORMAL_95 * variance_error
    sd_error = max(sqrt(variance + reach) - sd, sd - sqrt(max(0.0, variance - reach)))
    return {
        "mean": column.middle + column.range * mean,
        "mean_error": NORMAL_95 * column.range * mean_error,
        "sd": column.range * sd * sqrt(n / max(n - 1, 1)),
        "sd_error": column.range * sd_error,
    }
