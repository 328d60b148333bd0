"""The program of a statement without noise: minimum counts protect, and what is told is exact."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import Any

from winnow.analytics.program import Program
from winnow.analytics.question import MergedTerms
from winnow.analytics.sql.aggregate_values import AggregateValues, Estimate, Estimates
from winnow.analytics.sql.distinct_keys import open_distinct
from winnow.analytics.sql.finish_query import finish_query
from winnow.analytics.sql.first_rows import open_first
from winnow.analytics.sql.nearest_rows import open_nearest
from winnow.analytics.sql.opened_sums import open_sums
from winnow.analytics.sql.ordered_values import hidden_ranks, open_ordered
from winnow.analytics.sql.overlapping_groups import without_small_parts
from winnow.analytics.sql.owner_rows import Group, RowSelection
from winnow.analytics.sql.public_values import open_public_values
from winnow.analytics.sql.query_plan import DISTINCT, SAMPLED, SEARCHES, QueryKey, QueryPlan
from winnow.analytics.sql.row_sets import DecidedSets, decide_sets, sets_of
from winnow.analytics.sql.sampled_sums import SampleScale, open_sampled
from winnow.analytics.sql.selected_rows import SelectedRows, over_selected
from winnow.analytics.sql.table_sample import check_drawn_owners
from winnow.analytics.stats.quantile_search import search_quantiles
from winnow.analytics.stats.suppression import EMPTY, SHOWN
from winnow.core import DataError

MAX_GROUPS = 5_000


def exact_query(plan: QueryPlan, terms: MergedTerms) -> Program[dict[str, Any]]:
    """The rows of the answer, and what was left out."""
    if plan.sample is not None and plan.sample.method == "SYSTEM":
        check_drawn_owners(plan.sample, len(terms.owners), terms.least_owners)
    selection = RowSelection(plan, terms.tables(plan.tables), len(terms.owners), terms.minimum)
    if plan.first is not None:
        selection.end = yield from open_first(plan.first, selection, terms.minimum)
    if plan.nearest is not None:
        selection.nearest_ends = yield from open_nearest(plan.nearest, selection, len(terms.owners), terms.minimum)
    groups = yield from _open_groups(plan, selection)
    if not groups:
        return {**finish_query(plan, groups, [], {}), "left_out": 0, "hidden_values": 0, "unlisted_rows": False}
    selected, sets = SelectedRows(selection, groups), sets_of(plan)
    decided = yield from decide_sets(sets, selected, terms.minimum, tell_empty=not plan.private)
    smaller = decided.small_groups
    if plan.overlapping:
        decided = yield from without_small_parts(decided, sets, selected, terms.minimum, tell_empty=not plan.private)
    told_states = (SHOWN,) if plan.keys else (SHOWN, EMPTY)
    shown = [group for group, state in enumerate(decided.rows.tolist()) if state in told_states]
    numbers = yield from _open_numbers(plan, terms, selected, decided, shown)
    return {
        **finish_query(plan, groups, shown, numbers.estimates),
        "left_out": decided.small_groups,
        "overlapping": decided.small_groups - smaller,
        "hidden_values": numbers.hidden,
        "unlisted_rows": decided.outside,
    }


@dataclass(frozen=True, kw_only=True)
class _Numbers:
    estimates: Estimates
    hidden: int
    """How many are not told, of groups that are."""


def _open_numbers(
    plan: QueryPlan, terms: MergedTerms, selected: SelectedRows, decided: DecidedSets, shown: list[int]
) -> Program[_Numbers]:
    """Every aggregate of every group that is shown: from sums, by search, by counting identifiers, or of a sample."""
    sampled = plan.sample is not None
    opened, told = yield from open_sums(plan.aggregates, shown, selected, decided, decided.bits, sampled=sampled)
    search = partial(search_quantiles, grouping=selected.groups, bits=decided.bits)
    searched = open_ordered(told, plan, opened, terms.minimum, search)
    ordered = yield from over_selected(searched, selected)
    distinct = yield from open_distinct(plan, shown, selected, terms.minimum)
    estimates = {(each.name, group): Estimate(None) for each in plan.aggregates for group in shown}
    values = AggregateValues(opened=opened, count_bits=decided.bits)
    elsewhere = (*SEARCHES, DISTINCT, *(SAMPLED if sampled else ()))
    for aggregate in (each for each in plan.aggregates if each.function not in elsewhere):
        for group in told[aggregate.name]:
            estimates[aggregate.name, group] = values.estimate(aggregate, group)
    estimates |= ordered | distinct
    if plan.sample is not None:
        scale = SampleScale(sample=plan.sample, count_bits=decided.bits, owners=len(terms.owners))
        estimates |= yield from open_sampled(plan.aggregates, told, selected, scale)
    hidden = len(plan.aggregates) * len(shown) - sum(len(each) for each in told.values())
    hidden += sum(each.value is None for each in distinct.values())
    return _Numbers(estimates=estimates, hidden=hidden + hidden_ranks(plan.aggregates, told, opened, ordered))


def _open_groups(plan: QueryPlan, selection: RowSelection) -> Program[list[Group]]:
    """The groups there may be: from listed values, and from what owners have in public columns."""
    found: list[Group] = [()]
    if plan.public_sql is not None:
        found = yield from open_public_values(selection.public_values)
    return listed_groups(plan.keys, found)


def listed_groups(keys: Sequence[QueryKey], public: list[Group]) -> list[Group]:
    """Every combination of listed values with the public ones of the other keys."""
    listed = [key.values for key in keys if key.values is not None]
    if len(public) * prod(len(each) for each in listed) > MAX_GROUPS:
        raise DataError(f"GROUP BY makes more than {MAX_GROUPS:,} groups; group by less")
    unlisted = [place for place, key in enumerate(keys) if key.values is None]
    groups = list[Group]()
    for own, rest in product(public, product(*listed)):
        values, others = dict(zip(unlisted, own, strict=True)), iter(rest)
        groups.append(tuple(values[place] if place in values else next(others) for place in range(len(keys))))
    return groups
