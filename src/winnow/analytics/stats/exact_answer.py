"""What a statistics program opened, as an answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from winnow.analytics.stats.counted_cells import Column, Edges, key_of
from winnow.analytics.stats.moments import Pair, Spread
from winnow.analytics.stats.opened_counts import OpenedCounts
from winnow.analytics.stats.plan import CategoryColumn, NumberColumn, StatisticsPlan
from winnow.analytics.stats.quantile_search import Quantiles
from winnow.analytics.stats.suppression import TOTAL, Key


@dataclass(frozen=True, kw_only=True)
class OpenedStatistics:
    """All that was opened about the columns; None stands for what is hidden."""

    plan: StatisticsPlan
    edges: Edges
    counts: OpenedCounts
    spreads: Mapping[Key, list[Spread | None]]
    quantiles: Quantiles

    def columns(self) -> dict[str, dict[str, Any]]:
        told = {column.name: self._number(column) for column in self.plan.numbers}
        told |= {column.name: self._category(column) for column in self.plan.categories}
        return {name: told[name] for name in self.plan.order}

    def correlation(self, correlations: Mapping[Pair, float | None]) -> dict[str, Any]:
        names = [column.name for column in self.plan.numbers]
        matrix: list[list[float | None]] = [[1.0 if row == column else None for column in names] for row in names]
        for (one, other), value in correlations.items():
            row, column = names.index(one.name), names.index(other.name)
            matrix[row][column] = matrix[column][row] = value
        return {"columns": names, "matrix": matrix}

    def _number(self, column: NumberColumn) -> dict[str, Any]:
        answer: dict[str, Any] = {"type": "number", "bounds": [column.low, column.high]}
        if self.edges:
            answer["edges"] = self.edges[column.name].tolist()
        return {**answer, **self._by_group(lambda group: self._number_cell(column, group))}

    def _number_cell(self, column: NumberColumn, group: int) -> dict[str, Any]:
        spread = self.spreads[key_of("n", column, self.plan.grouping)][group]
        cell = {**self._rows(column, group), "mean": spread and spread.mean, "sd": spread and spread.sd}
        levels = {
            f"{level:g}": value
            for (name, at, level), value in self.quantiles.items()
            if (name, at) == (column.name, group)
        }
        if levels:
            cell["quantiles"] = levels
        if self.edges:
            bins = len(self.edges[column.name]) - 1
            cell["histogram"] = self.counts.column(key_of("bins", column, self.plan.grouping), bins, group)
        return cell

    def _category(self, column: CategoryColumn) -> dict[str, Any]:
        def told(group: int) -> dict[str, Any]:
            key = key_of("n", column, self.plan.grouping)
            values = [*self.counts.column(key, column.count, group), 0][: len(column.values) + 1]
            return {**self._rows(column, group), "counts": values[:-1], "other": values[-1]}

        return {"type": "category", "values": list(column.values), **self._by_group(told)}

    def _rows(self, column: Column, group: int) -> dict[str, Any]:
        missing = self.counts.cell(key_of("missing", column, self.plan.grouping), 0, group) if column.missing else 0
        return {"n": self.counts.cell(key_of("n", column, self.plan.grouping), TOTAL, group), "missing": missing}

    def _by_group(self, told: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
        return {"all": told(TOTAL), "groups": {label: told(at) for at, label in enumerate(self.plan.grouping.labels)}}
