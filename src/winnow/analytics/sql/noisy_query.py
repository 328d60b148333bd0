"""The program of a statement with noise: one sum of all cells, whose groups are listed beforehand.

Nothing is compared. Groups whose noisy count is below the minimum are left out afterwards, which costs nothing.
"""

from functools import partial
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Program
from winnow.analytics.question import MergedTerms
from winnow.analytics.sql.aggregate_values import Estimate
from winnow.analytics.sql.exact_query import listed_groups
from winnow.analytics.sql.finish_query import finish_query
from winnow.analytics.sql.owner_rows import RowSelection
from winnow.analytics.sql.query_plan import DISTINCT, SPREADS, Argument, QueryAggregate, QueryPlan
from winnow.analytics.sql.row_sets import ALL_ROWS, RowSet, counted_rows
from winnow.analytics.sql.selected_rows import QueryGroups, SelectedRows, over_selected
from winnow.analytics.stats.local_sums import moment_sums
from winnow.analytics.stats.noisy_answer import NORMAL_95, NoisyCells, noisy_spread
from winnow.analytics.stats.noisy_blocks import MOMENTS_LENGTH, Block, open_blocks, rows_a_unit
from winnow.analytics.stats.suppression import Key
from winnow.core import ConfigError

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

NOISY = ("count", "sum", "avg", *SPREADS)


def noisy_query(plan: QueryPlan, terms: MergedTerms, rho: float) -> Program[dict[str, Any]]:
    """The rows of the answer, each number with its standard error, and what was left out."""
    _check(plan)
    rows = rows_a_unit(terms.declaration)
    groups = listed_groups(plan.keys, [()])
    selected = SelectedRows(RowSelection(plan, terms.tables(plan.tables)), groups)
    blocks = _blocks(plan, selected.groups)
    cells = yield from over_selected(open_blocks(blocks, rows, rho, len(terms.owners)), selected)
    counts = cells[_key(ALL_ROWS)]
    shown = [group for group in range(len(groups)) if counts.cell(0, group)[0] >= terms.minimum]
    estimates = {
        (each.name, group): _estimate(each, group, cells, terms.minimum) for each in plan.aggregates for group in shown
    }
    return {
        **finish_query(plan, groups, shown, estimates),
        "left_out": len(groups) - len(shown),
        "hidden_values": sum(each.value is None for each in estimates.values()),
        "unlisted_rows": False,
    }


def _check(plan: QueryPlan) -> None:
    if plan.copies > 1:
        raise ConfigError(
            "with noise a statement names one table, once: a join or UNION ALL counts a row several times"
        )
    if exact := [each for each in plan.aggregates if each.function not in NOISY]:
        name = "COUNT(DISTINCT …)" if exact[0].function == DISTINCT else exact[0].function.upper()
        raise ConfigError(f"{name} cannot be told with noise; leave it out, or ask without epsilon")
    if unlisted := [each for each in plan.keys if each.values is None]:
        shown = unlisted[0].sql.replace('"', "")
        raise ConfigError(f"GROUP BY {shown}: with noise it needs a list of values; declare values = […]")
    if plan.sample is not None:
        raise ConfigError("TABLESAMPLE and noise cannot be combined; leave one of them out")
    if plan.first is not None:
        raise ConfigError("the first rows of all owners cannot be found with noise; leave LIMIT out of the subquery")


def _key(rows: RowSet) -> Key:
    return ("rows", *rows.present)


def _blocks(plan: QueryPlan, groups: QueryGroups) -> list[Block]:
    sets = dict.fromkeys([ALL_ROWS.present, *(counted_rows(each).present for each in plan.aggregates)])
    shape = (1, groups.count)
    found = [
        Block(key=_key(rows), shape=shape, local=partial(_count, rows, groups), length=1.0)
        for rows in (RowSet(present=each) for each in sets)
    ]
    powers: dict[Argument, int] = {}
    for each in (aggregate for aggregate in plan.aggregates if aggregate.function != "count"):
        (argument,) = each.arguments
        powers[argument] = max(powers.get(argument, 1), 2 if each.function in SPREADS else 1)
    for argument, power in powers.items():
        length = MOMENTS_LENGTH if power == 2 else 0.5
        local = partial(_moments, argument, power, groups)
        found.append(Block(key=("sums", argument.name), shape=(power, groups.count), local=local, length=length))
    return found


def _count(rows: RowSet, groups: QueryGroups, table: "OwnerTable") -> NDArray[np.int64]:
    return np.bincount(groups.codes(table)[rows.mask(table)], minlength=groups.count)


def _moments(argument: Argument, power: int, groups: QueryGroups, table: "OwnerTable") -> NDArray[np.float64]:
    return moment_sums(argument.column, groups, table)[:power, : groups.count]


def _estimate(aggregate: QueryAggregate, group: int, cells: dict[Key, NoisyCells], minimum: int) -> Estimate:
    """To first order in the noise."""
    n, error = cells[_key(RowSet(present=counted_rows(aggregate).present))].cell(0, group)
    if n < minimum:
        return Estimate(None)
    if aggregate.function == "count":
        return Estimate(round(n), error)
    (argument,) = aggregate.arguments
    column, sums = argument.column, cells["sums", argument.name]
    first, second = sums.cell(0, group), sums.cell(len(sums.values) - 1, group)
    if aggregate.function == "sum":
        total = n * column.middle + column.range * first[0]
        spread = sqrt((error * column.middle) ** 2 + (column.range * first[1]) ** 2)
        return Estimate(round(total) if column.whole else total, spread)
    told = noisy_spread(column, (n, error), first, second)
    if aggregate.function == "avg":
        return Estimate(told["mean"], told["mean_error"] / NORMAL_95)
    sd, sd_error = told["sd"], told["sd_error"] / NORMAL_95
    if aggregate.function.endswith("_pop"):
        sd *= sqrt((n - 1) / n)
    return Estimate(sd, sd_error) if aggregate.function.startswith("stddev") else Estimate(sd**2, 2 * sd * sd_error)
