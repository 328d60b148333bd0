"""MIN, MAX and quantiles: the value of a given rank within its group, by search.

Whole numbers and dates are found exactly, other numbers to half a step of 131,072 of their range.
"""

from collections.abc import Callable, Mapping, Sequence
from math import floor

from winnow.analytics.program import Program
from winnow.analytics.sql.aggregate_values import Estimate, Estimates
from winnow.analytics.sql.opened_sums import Opened, count_of
from winnow.analytics.sql.query_plan import SEARCHES, QueryAggregate, QueryPlan
from winnow.analytics.stats.quantile_search import STEPS, Search, rank

ROUNDING = 1e-9
"""Of levels times rows."""


def open_ordered(
    told: Mapping[str, list[int]],
    plan: QueryPlan,
    opened: Opened,
    minimum: int,
    search: Callable[[list[Search]], Program[list[float]]],
) -> Program[dict[tuple[str, int], Estimate]]:
    """By aggregate and group; what is not told is NULL."""
    ordered = [each for each in plan.aggregates if each.function in SEARCHES]
    asked = [(each, group) for each in ordered for group in told[each.name]]
    ranks = _told_ranks(asked, opened, minimum, extremes=not plan.private or minimum == 1)
    searches: dict[tuple[tuple[str, ...], int, int], Search] = {}
    for aggregate, group in asked:
        column = aggregate.arguments[0].column
        steps = int(column.range) if column.whole else STEPS
        inputs = _inputs(aggregate)
        for place in ranks[aggregate.name, group]:
            searches[inputs, group, place] = Search(column=column, group=group, rows=place, steps=steps, inputs=inputs)
    values = yield from search(list(searches.values()))
    found = dict(zip(searches, values, strict=True))
    return {
        (each.name, group): _value(
            each,
            opened[count_of(each), group],
            [found[_inputs(each), group, place] for place in ranks[each.name, group]],
        )
        for each, group in asked
    }


def _inputs(aggregate: QueryAggregate) -> tuple[str, ...]:
    return tuple(each.name for each in aggregate.inputs)


def hidden_ranks(
    aggregates: Sequence[QueryAggregate], told: Mapping[str, list[int]], opened: Opened, ordered: Estimates
) -> int:
    """How many are not told although there are rows."""
    return sum(
        ordered[each.name, group].value is None and opened[count_of(each), group] > 0
        for each in aggregates
        if each.function in SEARCHES
        for group in told[each.name]
    )


def _told_ranks(
    asked: Sequence[tuple[QueryAggregate, int]], opened: Opened, minimum: int, *, extremes: bool
) -> dict[tuple[str, int], list[int]]:
    """The ranks (from 1 on) that each aggregate needs; none where it is not told.

    A quantile has the minimum of rows on either side, and so many between it and others that are made of the same
    columns: quantiles at all levels would be the rows. `extremes`: no private column chooses rows, which could add one
    person's to many others.
    """
    found: dict[tuple[str, int], list[int]] = {}
    quantiles: dict[int, list[QueryAggregate]] = {}
    for each, group in asked:
        rows, before = opened[count_of(each), group], quantiles.setdefault(group, [])
        if each.level is None:
            found[each.name, group] = ([1] if each.function == "min" else [rows]) if rows and extremes else []
        elif rows and (minimum == 1 or _apart(each, before, rows, minimum)):
            before.append(each)
            found[each.name, group] = _quantile_ranks(each, rows)
        else:
            found[each.name, group] = []
    return found


def _apart(aggregate: QueryAggregate, before: Sequence[QueryAggregate], rows: int, minimum: int) -> bool:
    (argument,), level = aggregate.arguments, aggregate.level
    assert level is not None
    if min(level, 1 - level) * rows < minimum:
        return False
    for each in (one for one in before if one.arguments[0].columns & argument.columns):
        assert each.level is not None
        if each.arguments != aggregate.arguments or abs(each.level - level) * rows < minimum - ROUNDING:
            return False
    return True


def _quantile_ranks(aggregate: QueryAggregate, rows: int) -> list[int]:
    assert aggregate.level is not None
    if aggregate.function == "quantile":
        return [rank(aggregate.level, rows)]
    below = floor(aggregate.level * (rows - 1) + ROUNDING)
    return [below + 1, min(below + 2, rows)]


def _value(aggregate: QueryAggregate, rows: int, values: Sequence[float]) -> Estimate:
    if not values:
        return Estimate(None)
    if aggregate.function == "quantile_cont":
        assert aggregate.level is not None
        position = aggregate.level * (rows - 1)
        part = max(0.0, position - floor(position + ROUNDING))
        return Estimate(values[0] + (values[1] - values[0]) * part)
    return Estimate(int(values[0]) if aggregate.arguments[0].column.whole else values[0])
