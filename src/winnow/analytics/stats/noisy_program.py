"""The statistics program with noise: one sum of all cells, with discrete Gaussian noise in each.

All cells of one kind and column make a block. One unit's rows (sites take at most `rows` of them) move a block of
counts by `rows`, and one of moments (Σu, Σu²) by rows·√(¼ + 1/16), as |u| ≤ ½. Blocks are scaled to the same length
before they are joined to one vector, so that each gets an equal part of ρ. Nothing is compared: cells whose noisy count
is below the minimum are left out afterwards, which costs nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Noise, Program, Sum
from winnow.analytics.question import Answer, MergedTerms
from winnow.analytics.stats.counted_cells import Edges, key_of
from winnow.analytics.stats.exact_program import jittered_edges
from winnow.analytics.stats.local_sums import bins_of, count_cells, moment_sums, present_and_missing
from winnow.analytics.stats.noisy_answer import NoisyCells, NoisyStatistics
from winnow.analytics.stats.plan import CategoryColumn, Grouping, NumberColumn, StatisticsPlan
from winnow.analytics.stats.statistics_question import StatisticsQuestion
from winnow.analytics.stats.suppression import Key
from winnow.core import ConfigError

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

MOMENTS_LENGTH = sqrt(1 / 4 + 1 / 16)
"""How long (u, u²) is at most."""
BLOCK_LENGTH = float(1 << 20)
"""How far one unit moves a block, in steps of the noisy vector: many, so that rounding costs little."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Cells that are told of one column: by category or moment (rows) and group (columns)."""

    key: Key
    shape: tuple[int, int]
    local: Callable[["OwnerTable"], NDArray[Any]]
    length: float
    """How far one row moves them."""


def noisy_program(question: StatisticsQuestion, terms: MergedTerms, plan: StatisticsPlan) -> Program[Answer]:
    """The answer to a question with ε, each number with the half width of its 95 % interval (noise alone)."""
    assert question.epsilon is not None
    rows = _rows_a_unit(question, terms)
    bounds = {column.name: (column.low, column.high) for column in plan.numbers}
    edges = jittered_edges(question, plan, bounds) if question.histograms else {}
    blocks = list(_blocks(plan, edges))
    scales = np.concatenate([np.full(np.prod(each.shape), BLOCK_LENGTH / (rows * each.length)) for each in blocks])

    def local(table: "OwnerTable") -> NDArray[np.int64]:
        cells = np.concatenate([each.local(table).reshape(-1) for each in blocks])
        steps: NDArray[np.int64] = np.rint(cells * scales).astype(np.int64)
        return steps

    sensitivity = BLOCK_LENGTH * sqrt(len(blocks)) + sqrt(len(scales))  # the sums are rounded
    noise = Noise(rho=question.rho(terms), sensitivity=sensitivity)
    opened = yield Sum(label="noisy cells", local=local, length=len(scales), noise=noise)
    values = opened.astype(np.float64) / scales
    errors = noise.deviation(len(terms.owners)) / scales
    cells, at = dict[Key, NoisyCells](), 0
    for block in blocks:
        until = at + int(np.prod(block.shape))
        cells[block.key] = NoisyCells(values[at:until].reshape(block.shape), errors[at:until].reshape(block.shape))
        at = until
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


def _rows_a_unit(question: StatisticsQuestion, terms: MergedTerms) -> int:
    exact_only = {
        "quantiles": question.quantiles,
        "correlation": question.correlation,
        "tests": question.tests,
        "per_owner": question.per_owner,
    }
    if asked := [name for name, wanted in exact_only.items() if wanted]:
        raise ConfigError(f"{asked[0]} cannot be told with noise; leave it out, or ask without epsilon")
    declaration = terms.declaration
    if declaration.unit is not None and declaration.rows is None:
        raise ConfigError(f"noise needs a limit for the rows of each '{declaration.unit}'; declare rows")
    return declaration.rows or 1


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
