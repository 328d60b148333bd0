"""The statistics program without noise: minimum counts protect, and what is told is exact."""

from itertools import combinations

import numpy as np

from winnow.analytics.program import Program
from winnow.analytics.question import Answer, MergedTerms
from winnow.analytics.stats.counted_cells import Column, Edges, cell_tables, counted_columns, key_of, rows_with_both
from winnow.analytics.stats.exact_answer import OpenedStatistics
from winnow.analytics.stats.moments import GroupedColumn, open_moments
from winnow.analytics.stats.opened_counts import OpenedCounts, open_counts
from winnow.analytics.stats.owner_statistics import open_owner_statistics
from winnow.analytics.stats.plan import EVERYBODY, NumberColumn, StatisticsPlan
from winnow.analytics.stats.quantile_search import Quantiles, Search, rank, search_quantiles
from winnow.analytics.stats.significance_tests import read_tests
from winnow.analytics.stats.size_up import size_up
from winnow.analytics.stats.statistics_question import StatisticsQuestion
from winnow.analytics.stats.suppression import TOTAL
from winnow.analytics.stats.survival import open_survival, read_survivals
from winnow.core import DataError

JITTER = 0.25
"""Inner edges are moved by up to this part of a bin: counts of two questions with almost the same bins could else be
subtracted.
"""
OUTER_QUANTILES = (0.01, 0.99)


def exact_program(question: StatisticsQuestion, terms: MergedTerms, plan: StatisticsPlan) -> Program[Answer]:
    """The answer to a question."""
    survivals = read_survivals(question.tests, terms.declaration)
    size = yield from size_up(plan, read_tests(question.tests, terms.declaration))
    plan, tests, minimum = size.plan, size.tests, terms.minimum
    bits = max(size.bits, minimum.bit_length())
    edges = yield from _edges(question, plan, minimum, bits)
    tables = cell_tables(plan, edges, tests, correlation=question.correlation)
    counts = (yield from open_counts(tables, minimum, bits)) if tables else OpenedCounts({}, 0)
    _check_rows(plan, counts, minimum)
    profiles = {
        key: GroupedColumn(column=column, grouping=grouping, counts=list(counts.cells[key][0]))
        for key, (column, grouping) in counted_columns(plan, tests).items()
        if isinstance(column, NumberColumn)
    }
    pairs = combinations(plan.numbers, 2) if question.correlation else ()
    with_both = {pair: rows for pair in pairs if (rows := rows_with_both(*pair, plan.grouping, counts))}
    spreads, correlations = yield from open_moments(list(profiles.values()), with_both, bits)
    outer = OUTER_QUANTILES if question.histogram_range == "quantiles" else ()
    opened = OpenedStatistics(
        plan=plan,
        edges=edges,
        counts=counts,
        spreads=dict(zip(profiles, spreads, strict=True)),
        quantiles=(yield from _quantiles(question.quantiles, plan, counts, minimum, bits, outer)),
    )
    told = [test.result(counts, opened.spreads) for test in tests]
    for survival in survivals:
        told.append((yield from open_survival(survival, minimum, bits)))
    owners = (yield from open_owner_statistics(plan.numbers, terms, bits)) if question.per_owner else None
    return {
        "kind": "statistics",
        "table": question.table,
        "owners": list(terms.owners),
        "minimum": terms.minimum,
        "by": list(question.by),
        "groups": list(plan.grouping.labels),
        "columns": opened.columns(),
        "correlation": opened.correlation(correlations) if question.correlation else None,
        "tests": told,
        "per_owner": owners,
        "skipped": plan.skipped,
        "hidden_cells": counts.hidden,
    }


def _check_rows(plan: StatisticsPlan, counts: OpenedCounts, minimum: int) -> None:
    columns: list[Column] = [*plan.numbers, *plan.categories]
    if columns and not any(counts.cell(key_of("n", column, plan.grouping)) for column in columns):
        raise DataError(f"fewer than {minimum} rows have a value in any of the columns; {minimum} are the least")


def _edges(question: StatisticsQuestion, plan: StatisticsPlan, minimum: int, bits: int) -> Program[Edges]:
    """The edges of the bins by column: the bounds outside, inner ones moved by chance."""
    if not question.histograms:
        return {}
    inner = {column.name: (column.low, column.high) for column in plan.numbers}
    if question.histogram_range == "quantiles":
        every = StatisticsPlan(numbers=plan.numbers, categories=(), grouping=EVERYBODY, order=(), skipped={})
        counts = yield from open_counts(cell_tables(every, {}, (), correlation=False), minimum, bits)
        quantiles = yield from _quantiles(OUTER_QUANTILES, every, counts, minimum, bits)
        for column in plan.numbers:
            low, high = (quantiles[column.name, TOTAL, level] for level in OUTER_QUANTILES)
            if low is not None and high is not None and low < high:
                inner[column.name] = (low, high)
    return jittered_edges(question, plan, inner)


def jittered_edges(question: StatisticsQuestion, plan: StatisticsPlan, inner: dict[str, tuple[float, float]]) -> Edges:
    """Edges that divide the `inner` range of each column; the first and last bin reach to its bounds."""
    edges = dict[str, "np.ndarray[tuple[int], np.dtype[np.float64]]"]()
    for column in plan.numbers:
        even = np.linspace(*inner[column.name], question.histograms + 1)
        moved = question.randomness(("edges", column.name)).uniform(-JITTER, JITTER, question.histograms - 1)
        edges[column.name] = np.r_[column.low, even[1:-1] + moved * (even[1] - even[0]), column.high]
    return edges


def _quantiles(
    levels: tuple[float, ...],
    plan: StatisticsPlan,
    counts: OpenedCounts,
    minimum: int,
    bits: int,
    known: tuple[float, ...] = (),
) -> Program[Quantiles]:
    """By column, group and level; None where fewer than `minimum` rows lie on a side of it, or between it and another:
    quantiles at all levels would be the rows.
    """
    found, searches = dict[tuple[str, int, float], float | None](), dict[tuple[str, int, float], Search]()
    for column in plan.numbers:
        for group in (*range(len(plan.grouping.labels)), TOTAL):
            rows = counts.cell(key_of("n", column, plan.grouping), 0, group) or 0
            ranks = [rank(level, rows) for level in known] if group == TOTAL else []
            for level in levels:
                key, goal = (column.name, group, level), rank(level, rows)
                found[key] = None
                apart = all(goal == other or abs(goal - other) >= minimum for other in ranks)
                if apart and min(level, 1 - level) * rows >= minimum:
                    ranks.append(goal)
                    searches[key] = Search(column=column, group=None if group == TOTAL else group, rows=goal)
    values = yield from search_quantiles(list(searches.values()), plan.grouping, bits)
    return found | dict(zip(searches, values, strict=True))
