"""MIN, MAX and quantiles: the value of a given rank within its group, by search.

Whole numbers and dates are found exactly, other numbers to half a step of 131,072 of their range.
"""

from collections.abc import Iterator, Mapping
from math import floor

from winnow.analytics.program import Program
from winnow.analytics.sql.aggregate_values import Estimate
from winnow.analytics.sql.opened_sums import Opened, count_of
from winnow.analytics.sql.owner_rows import QueryGroups
from winnow.analytics.sql.query_plan import SEARCHES, QueryAggregate
from winnow.analytics.stats.quantile_search import STEPS, Search, rank, search_quantiles


def open_ordered(
    told: Mapping[str, list[int]],
    aggregates: tuple[QueryAggregate, ...],
    opened: Opened,
    groups: QueryGroups,
    minimum: int,
    bits: int,
) -> Program[dict[tuple[str, int], Estimate]]:
    """By aggregate and group; a quantile with fewer than `minimum` rows on one side is not told."""
    searches: dict[tuple[str, int, int], Search] = {}
    for aggregate in (each for each in aggregates if each.function in SEARCHES):
        for group in told[aggregate.name]:
            rows = opened[count_of(aggregate), group]
            for place in _ranks(aggregate, rows, minimum):
                column = aggregate.arguments[0].column
                steps = int(column.range) if column.whole else STEPS
                searches[column.name, group, place] = Search(column=column, group=group, rows=place, steps=steps)
    values = yield from search_quantiles(list(searches.values()), groups, bits)
    found = dict(zip(searches, values, strict=True))
    return {
        (aggregate.name, group): _value(aggregate, group, opened[count_of(aggregate), group], minimum, found)
        for aggregate in aggregates
        if aggregate.function in SEARCHES
        for group in told[aggregate.name]
    }


def _ranks(aggregate: QueryAggregate, rows: int, minimum: int) -> Iterator[int]:
    """The ranks (from 1 on) that an aggregate needs."""
    if not rows:
        return
    if aggregate.function in ("min", "max"):
        yield 1 if aggregate.function == "min" else rows
        return
    level = aggregate.level
    assert level is not None
    if min(level, 1 - level) * rows < minimum and minimum > 1:
        return
    if aggregate.function == "quantile":
        yield rank(level, rows)
        return
    below = floor(level * (rows - 1) + 1e-9)
    yield below + 1
    yield min(below + 2, rows)


def _value(
    aggregate: QueryAggregate, group: int, rows: int, minimum: int, found: Mapping[tuple[str, int, int], float]
) -> Estimate:
    name = aggregate.arguments[0].name
    values = [found[name, group, place] for place in _ranks(aggregate, rows, minimum)]
    if not values:
        return Estimate(None)
    if aggregate.function == "quantile_cont":
        assert aggregate.level is not None
        position = aggregate.level * (rows - 1)
        part = max(0.0, position - floor(position + 1e-9))
        return Estimate(values[0] + (values[1] - values[0]) * part)
    return Estimate(int(values[0]) if aggregate.arguments[0].column.whole else values[0])
