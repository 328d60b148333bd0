"""The statistics program with noise: one sum of all cells, with discrete Gaussian noise in each.

All cells of one kind and column make a block (`noisy_blocks.py`). Nothing is compared: cells whose noisy count is below
the minimum are left out afterwards, which costs nothing.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Program
from winnow.analytics.question import Answer, MergedTerms
from winnow.analytics.stats.counted_cells import Edges, key_of
from winnow.analytics.stats.local_sums import bins_of, count_cells, moment_sums, present_and_missing
from winnow.analytics.stats.noiseless_program import jittered_edges
from winnow.analytics.stats.noisy_answer import NoisyStatistics
from winnow.analytics.stats.noisy_blocks import MOMENTS_LENGTH, Block, open_blocks, rows_a_unit
from winnow.analytics.stats.plan import CategoryColumn, Grouping, NumberColumn, StatisticsPlan
from winnow.analytics.stats.statistics_question import StatisticsQuestion
from winnow.core import ConfigError

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable


def noisy_program(question: StatisticsQuestion, terms: MergedTerms, plan: StatisticsPlan) -> Program[Answer]:
    """The answer to a question with ε, each number with the half width of its 95 % interval (noise alone)."""
    assert question.epsilon is not None
    _check_exact_only(question)
    rows = rows_a_unit(terms.declaration)
    bounds = {column.name: (column.low, column.high) for column in plan.numbers}
    edges = jittered_edges(question, plan, bounds) if question.histograms else {}
    blocks = list(_blocks(plan, edges))
    cells = yield from open_blocks(blocks, rows, question.rho(terms), len(terms.owners))
    told = NoisyStatistics(plan=plan, edges=edges, cells=cells, minimum=terms.minimum)
    return {
        "kind": "statistics",
        "table": question.table,
        "owners": list(terms.owners),
        "minimum": terms.minimum,
        "epsilon": question.epsilon,
        "delta": question.delta,
        "by": list(question.by),
        "groups": list(plan.grouping.labels),
        "columns": told.columns(),
        "correlation": None,
        "tests": [],
        "per_owner": None,
        "skipped": plan.skipped,
        "hidden_cells": told.hidden,
    }


def _check_exact_only(question: StatisticsQuestion) -> None:
    exact_only = {
        "quantiles": question.quantiles,
        "correlation": question.correlation,
        "tests": question.tests,
        "per_owner": question.per_owner,
    }
    if asked := [name for name, wanted in exact_only.items() if wanted]:
        raise ConfigError(f"{asked[0]} cannot be told with noise; leave it out, or ask without epsilon")


def _blocks(plan: StatisticsPlan, edges: Edges) -> Iterator[Block]:
    """Cells by group, without totals: they are added up afterwards."""
    for column in plan.numbers:
        yield from _number_blocks(column, plan.grouping, edges)
    for category in plan.categories:
        shape = (len(category.values) + 2, plan.grouping.count)
        count = partial(_count, partial(_with_missing, category), plan.grouping, shape)
        yield Block(key=key_of("rows", category, plan.grouping), shape=shape, local=count, length=1.0)


def _number_blocks(column: NumberColumn, grouping: Grouping, edges: Edges) -> Iterator[Block]:
    shape = (2, grouping.count)
    rows = partial(present_and_missing, column, grouping)
    yield Block(key=key_of("rows", column, grouping), shape=shape, local=rows, length=1.0)
    moments = partial(_moments, column, grouping)
    yield Block(key=key_of("moments", column, grouping), shape=shape, local=moments, length=MOMENTS_LENGTH)
    if edges:
        bins, shape = partial(bins_of, column, edges[column.name]), (len(edges[column.name]) - 1, grouping.count)
        count = partial(_count, bins, grouping, shape)
        yield Block(key=key_of("bins", column, grouping), shape=shape, local=count, length=1.0)


def _count(
    codes: Callable[["OwnerTable"], NDArray[np.int64]], grouping: Grouping, shape: tuple[int, int], table: "OwnerTable"
) -> NDArray[np.float64]:
    return count_cells(codes(table), grouping.codes(table), shape)


def _with_missing(column: CategoryColumn, table: "OwnerTable") -> NDArray[np.int64]:
    """The place of each row's value: then another one, then none."""
    codes = column.codes(table)
    return np.where(codes < 0, len(column.values) + 1, codes)


def _moments(column: NumberColumn, grouping: Grouping, table: "OwnerTable") -> NDArray[np.float64]:
    return moment_sums(column, grouping, table)[:, : grouping.count]
