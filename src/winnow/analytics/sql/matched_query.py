"""The program of a join between two owners.

They find the identifiers that both have, and learn those. What they select, group by and sum stays hidden: counts are
compared with the minimum in shares, and of what is too small no party sends its part.
"""

from functools import partial
from typing import Any

import numpy as np

from winnow.analytics.program import Program
from winnow.analytics.question import MergedTerms
from winnow.analytics.sql.aggregate_values import AggregateValues, Estimate
from winnow.analytics.sql.finish_query import finish_query
from winnow.analytics.sql.matched_join import MatchedJoin
from winnow.analytics.sql.matched_order import search_matched
from winnow.analytics.sql.matched_sets import decide_matched_sets
from winnow.analytics.sql.matched_sums import open_matched_sums
from winnow.analytics.sql.near_join import NearJoin
from winnow.analytics.sql.ordered_values import hidden_ranks, open_ordered
from winnow.analytics.sql.query_plan import SEARCHES, QueryPlan
from winnow.analytics.sql.row_sets import DecidedSets
from winnow.analytics.stats.suppression import EMPTY, SHOWN, SMALL


def matched_query(plan: QueryPlan, terms: MergedTerms) -> Program[dict[str, Any]]:
    """The rows of the answer, and what was left out."""
    join = (MatchedJoin if plan.near is None else NearJoin)(plan=plan, terms=terms)
    yield from join.open_groups()
    enough = yield from join.match()
    if enough:
        decided = yield from decide_matched_sets(join)
    else:
        decided = _nothing(join)
    told_states = (SHOWN,) if plan.keys else (SHOWN, EMPTY)
    shown = [group for group, state in enumerate(decided.rows.tolist()) if state in told_states]
    opened, told = yield from open_matched_sums(join, shown, decided)
    values = AggregateValues(opened=opened, count_bits=decided.bits)
    estimates = {(each.name, group): Estimate(None) for each in plan.aggregates for group in shown}
    for aggregate in (each for each in plan.aggregates if each.function not in SEARCHES):
        for group in told[aggregate.name]:
            estimates[aggregate.name, group] = values.estimate(aggregate, group)
    ordered = yield from open_ordered(told, plan, opened, terms.minimum, partial(search_matched, join))
    hidden = len(plan.aggregates) * len(shown) - sum(map(len, told.values()))
    return {
        **finish_query(plan, join.groups, shown, estimates | ordered),
        "left_out": decided.small_groups,
        "hidden_values": hidden + hidden_ranks(plan.aggregates, told, opened, ordered),
        "distance_precision": 0.0 if plan.near is None else plan.near.precision,
        "unlisted_rows": False,
    }


def _nothing(join: MatchedJoin) -> DecidedSets:
    """Too few identifiers are common for any group; with a minimum of 1, none."""
    state = EMPTY if join.terms.minimum == 1 else SMALL
    return DecidedSets(bits=1, outside=False, rows=np.full(len(join.groups), state, np.int8), states={})
