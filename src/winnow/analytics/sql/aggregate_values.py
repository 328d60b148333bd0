"""Aggregates from what was opened of a group: AVG = Σ/n, VAR and CORR from sums about the middle of the bounds."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

from winnow.analytics.sql.opened_sums import PAIR_SUMS, Opened, Summand, count_of, exact_total
from winnow.analytics.sql.query_plan import QueryAggregate
from winnow.analytics.stats.moments import correlation, fraction_bits, spread


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error, which only samples and noise have. NULL is None."""

    value: int | float | None
    error: float | None = None


@dataclass(frozen=True, kw_only=True)
class AggregateValues:
    opened: Opened
    count_bits: int

    def estimate(self, aggregate: QueryAggregate, group: int) -> Estimate:
        """Of everything but what is searched for."""
        rows = self.opened[count_of(aggregate), group]
        if aggregate.function == "count":
            return Estimate(rows)
        if aggregate.function == "corr":
            return Estimate(self._correlation(aggregate, group, rows))
        return {"sum": self._sum, "avg": self._mean}.get(aggregate.function, self._spread)(aggregate, group, rows)

    def _units(self, aggregate: QueryAggregate, group: int, power: int) -> int:
        summand = Summand(rows=count_of(aggregate).rows, arguments=aggregate.arguments, power=power)
        return self.opened[summand, group]

    def _total(self, aggregate: QueryAggregate, group: int, rows: int) -> int | float:
        column = aggregate.arguments[0].column
        if exact_total(aggregate.arguments[0], self.count_bits):
            return self._units(aggregate, group, 0)
        return rows * column.middle + column.range * (self._units(aggregate, group, 1) / 2.0**self._bits)

    @property
    def _bits(self) -> int:
        return fraction_bits(self.count_bits)

    def _sum(self, aggregate: QueryAggregate, group: int, rows: int) -> Estimate:
        return Estimate(self._total(aggregate, group, rows) if rows else None)

    def _mean(self, aggregate: QueryAggregate, group: int, rows: int) -> Estimate:
        return Estimate(self._total(aggregate, group, rows) / rows if rows else None)

    def _deviation(self, aggregate: QueryAggregate, group: int, rows: int) -> float:
        first, second = (self._units(aggregate, group, power) for power in (1, 2))
        return spread(aggregate.arguments[0].column, rows, first, second, self._bits).sd

    def _spread(self, aggregate: QueryAggregate, group: int, rows: int) -> Estimate:
        population = aggregate.function.endswith("_pop")
        if rows < (1 if population else 2):
            return Estimate(None)
        variance = self._deviation(aggregate, group, rows) ** 2
        if population:
            variance *= (rows - 1) / rows
        return Estimate(sqrt(variance) if aggregate.function.startswith("stddev") else variance)

    def _correlation(self, aggregate: QueryAggregate, group: int, rows: int) -> float | None:
        if rows < 2:
            return None
        return correlation(rows, [self._units(aggregate, group, each) for each in range(PAIR_SUMS)], self._bits)


Estimates = Mapping[tuple[str, int], Estimate]
"""By aggregate and group."""
