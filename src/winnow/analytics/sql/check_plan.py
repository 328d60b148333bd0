"""What of a planned statement is refused whoever asks: aggregates that a sample or a join cannot tell. What owners
refuse by their minimum is in `check_minimum.py`.
"""

from collections.abc import Sequence

from sqlglot import exp

from winnow.analytics.sql.aggregate_functions import function_name
from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.query_plan import DISTINCT, SAMPLED, QueryPlan
from winnow.analytics.sql.relations import RowSource
from winnow.core.untrusted_text import one_line


def check_plan(plan: QueryPlan, tree: exp.Select, source: RowSource, nodes: Sequence[exp.Expr]) -> None:
    """`nodes` are those of the plan's aggregates."""
    _check_sample(plan, tree, nodes)
    joined = plan.sides is not None or plan.counted != "rows"
    for each, node in zip(plan.aggregates, nodes, strict=True):
        if joined and each.level is not None:
            between = " between owners" if plan.sides is not None else ""
            raise refused(node, f"{_called(node)} of a join{between} is not supported: one row may be joined with many")
        if plan.near is not None and each.function in ("min", "max", "corr"):
            raise refused(node, f"{_called(node)} of a join by distance between owners is not supported")
        if plan.sides is not None and each.function == DISTINCT:
            raise refused(node, f"{_called(node)}(DISTINCT …) of a join between owners is not supported")
    _check_told(plan, tree, source, nodes)


def _called(node: exp.Expr) -> str:
    return function_name(node.this if isinstance(node, exp.Filter) else node)


def _check_sample(plan: QueryPlan, tree: exp.Select, nodes: Sequence[exp.Expr]) -> None:
    if plan.sample is None:
        return
    if plan.sides is not None:
        raise refused(tree, "TABLESAMPLE of a join between owners is not supported")
    if plan.nearest is not None:
        raise refused(tree, "TABLESAMPLE and LATERAL cannot be combined")
    if plan.identifiers:
        raise refused(tree, "COUNT(DISTINCT …) of a sample does not tell how many there are; leave one out")
    if plan.sample.method == "BERNOULLI":
        return
    if plan.first is not None:
        raise refused(tree, f"TABLESAMPLE {plan.sample.method} and LIMIT in a subquery cannot be combined")
    for each, node in zip(plan.aggregates, nodes, strict=True):
        if each.function not in SAMPLED:
            raise refused(node, f"{_called(node)} of a sample takes TABLESAMPLE BERNOULLI, not {plan.sample.method}")


def _check_told(plan: QueryPlan, tree: exp.Select, source: RowSource, nodes: Sequence[exp.Expr]) -> None:
    """Who chose the rows of a table that is told could write numbers into it by which a sum tells rows apart."""
    told = [item for item in source.items if item.relation.told or (plan.nearest and not item.relation.divided)]
    if not told:
        return
    if len(source.divided) > 1:
        raise refused(tree, f"{one_line(told[0].alias)} is told to all owners, and can be joined with one other table")
    for node in nodes:
        for column in node.find_all(exp.Column):
            item = source.item_of(column)
            if item in told:
                named = f"{_called(node)}: column '{one_line(column.name)}' is of {one_line(told[0].alias)}"
                raise refused(column, f"{named}, whose rows all owners learn; it may stand in ON, WHERE and GROUP BY")
