"""The program of a statement without noise: minimum counts protect, and what is told is exact."""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

from winnow.analytics.program import Program
from winnow.analytics.question import MergedTerms
from winnow.analytics.sql.aggregate_values import AggregateValues, Estimate
from winnow.analytics.sql.distinct_keys import open_distinct
from winnow.analytics.sql.finish_query import finish_query
from winnow.analytics.sql.first_rows import open_first
from winnow.analytics.sql.opened_sums import count_of, open_sums
from winnow.analytics.sql.ordered_values import open_ordered
from winnow.analytics.sql.owner_rows import Group, RowSelection, SelectedRows, over_selected
from winnow.analytics.sql.public_values import open_public_values
from winnow.analytics.sql.query_plan import DISTINCT, SAMPLED, SEARCHES, QueryKey, QueryPlan
from winnow.analytics.sql.row_sets import decide_sets, sets_of
from winnow.analytics.sql.sampled_sums import SampleScale, open_sampled
from winnow.analytics.sql.table_sample import check_drawn_owners
from winnow.analytics.stats.suppression import EMPTY, SHOWN
from winnow.core import DataError

MAX_GROUPS = 5_000


def exact_query(plan: QueryPlan, terms: MergedTerms) -> Program[dict[str, Any]]:
    """The rows of the answer, and what was left out."""
    if plan.sample is not None and plan.sample.method == "SYSTEM":
        check_drawn_owners(plan.sample, len(terms.owners), terms.least_owners)
    selection = RowSelection(plan, terms.tables(plan.tables), len(terms.owners))
    if plan.first is not None:
        selection.end = yield from open_first(plan.first, selection, terms.minimum)
    groups = yield from _open_groups(plan, selection)
    selected, sets = SelectedRows(selection, groups), sets_of(plan)
    shown: list[int] = []
    estimates = dict[tuple[str, int], Estimate]()
    left_out = hidden = 0
    outside = False
    if groups:
        decided = yield from decide_sets(sets, selected, terms.minimum, tell_empty=not plan.private)
        told_states = (SHOWN,) if plan.keys else (SHOWN, EMPTY)
        shown = [group for group, state in enumerate(decided.rows.tolist()) if state in told_states]
        sampled = plan.sample is not None
        opened, told = yield from open_sums(plan.aggregates, shown, selected, decided, decided.bits, sampled=sampled)
        values = AggregateValues(opened=opened, count_bits=decided.bits)
        searched = open_ordered(told, plan, opened, selected.groups, terms.minimum, decided.bits)
        ordered = yield from over_selected(searched, selected)
        distinct = yield from open_distinct(plan, shown, selected, terms.minimum)
        estimates = {(each.name, group): Estimate(None) for each in plan.aggregates for group in shown}
        elsewhere = (*SEARCHES, DISTINCT, *(SAMPLED if sampled else ()))
        for aggregate in (each for each in plan.aggregates if each.function not in elsewhere):
            for group in told[aggregate.name]:
                estimates[aggregate.name, group] = values.estimate(aggregate, group)
        estimates |= ordered | distinct
        if plan.sample is not None:
            scale = SampleScale(sample=plan.sample, count_bits=decided.bits, owners=len(terms.owners))
            estimates |= yield from open_sampled(plan.aggregates, told, selected, scale)
        left_out, outside = decided.small_groups, decided.outside
        hidden = len(plan.aggregates) * len(shown) - sum(len(each) for each in told.values())
        hidden += sum(each.value is None for each in distinct.values())
        hidden += sum(
            ordered[each.name, group].value is None and opened[count_of(each), group] > 0
            for each in plan.aggregates
            if each.function in SEARCHES
            for group in told[each.name]
        )
    return {
        **finish_query(plan, groups, shown, estimates),
        "left_out": left_out,
        "hidden_values": hidden,
        "unlisted_rows": outside,
    }


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
