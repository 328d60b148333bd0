"""COUNT(*) of a join between two owners: how many identifiers both have, and nobody learns which.

This takes identifiers that stand once at each owner, which they find out first, and a statement without conditions: the
owner that asks learns the number, however small, before it is compared with the minimum.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from winnow.analytics.program import Compare, Match, Program
from winnow.analytics.question import MergedTerms
from winnow.analytics.sql.aggregate_values import Estimate
from winnow.analytics.sql.finish_query import finish_query
from winnow.analytics.sql.matched_join import MatchedJoin
from winnow.analytics.sql.query_plan import QueryPlan

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable


def counts_alone(plan: QueryPlan) -> bool:
    """Whether a statement is about the number of joined rows, of all there are, and nothing else."""
    assert plan.sides is not None
    return (
        plan.near is None
        and not plan.keys
        and all(each.function == "count" and not each.inputs for each in plan.aggregates)
        and all(side.whole for side in plan.sides)
    )


def matched_size(plan: QueryPlan, terms: MergedTerms) -> Program[dict[str, Any] | None]:
    """The answer; None where an owner has an identifier more than once, whatever conditions say."""
    join = MatchedJoin(plan=plan, terms=terms)

    def several(table: "OwnerTable") -> "np.ndarray[Any, np.dtype[np.int64]]":
        return np.array([join.side(table).several_rows(table)], np.int64)

    (repeated,) = yield Compare(
        label="whether an identifier has several rows", local=several, thresholds=np.ones(1, np.int64), bits=8
    )
    if repeated:
        return None
    enough, size = yield Match(
        label="how many identifiers both owners have",
        local=lambda table: join.side(table).identifiers(table),
        parties=join.places,
        minimum=terms.minimum,
        reveal="size",
    )
    told = enough or terms.minimum == 1
    estimates = {(each.name, 0): Estimate(int(size)) for each in plan.aggregates}
    return {
        **finish_query(plan, [()], [0] if told else [], estimates),
        "left_out": 0 if told else 1,
        "hidden_values": 0,
        "unlisted_rows": False,
    }
