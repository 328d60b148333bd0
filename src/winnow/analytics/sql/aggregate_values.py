"""Aggregates from what was opened of a group: AVG = Σ/n, VAR and CORR from sums about the middle of the bounds.

Of a sample of a part p of all rows, counts and sums are divided by p. Their standard errors are √(n(1 − p))/p and
√((1 − p)Σx²)/p, that of a mean is s·√((1 − p)/n).
"""

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
    sample: float | None

    def estimate(self, aggregate: QueryAggregate, group: int) -> Estimate:
        """Of everything but what is searched for."""
        rows = self.opened[count_of(aggregate), group]
        if aggregate.function == "count":
            return self._count(rows)
        if aggregate.function == "corr":
            return Estimate(self._correlation(aggregate, group, rows))
        return {"sum": self._sum, "avg": self._mean}.get(aggregate.function, self._spread)(aggregate, group, rows)

    def _count(self, rows: int) -> Estimate:
        if self.sample is None:
            return Estimate(rows)
        return Estimate(round(rows / self.sample), sqrt(rows * (1 - self.sample)) / self.sample)

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
        if not rows:
            return Estimate(None)
        total, column = self._total(aggregate, group, rows), aggregate.arguments[0].column
        if self.sample is None:
            return Estimate(total)
        units = self._units(aggregate, group, 1) / 2.0**self._bits
        squares = self._units(aggregate, group, 2) / 2.0**self._bits
        sum_of_squares = rows * column.middle**2 + 2 * column.middle * column.range * units + column.range**2 * squares
        error = sqrt(max(0.0, (1 - self.sample) * sum_of_squares)) / self.sample
        scaled = total / self.sample
        return Estimate(round(scaled) if column.whole else scaled, error)

    def _mean(self, aggregate: QueryAggregate, group: int, rows: int) -> Estimate:
        if not rows:
            return Estimate(None)
        mean = self._total(aggregate, group, rows) / rows
        if self.sample is None:
            return Estimate(mean)
        return Estimate(mean, self._deviation(aggregate, group, rows) * sqrt((1 - self.sample) / rows))

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
