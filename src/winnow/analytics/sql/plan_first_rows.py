"""FROM (SELECT … ORDER BY … LIMIT k): numbers about the first k rows of all owners, for instance the k nearest."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.choosing_conditions import conditions_in
from winnow.analytics.sql.describe_expression import describe_expression, is_distance
from winnow.analytics.sql.order_keys import OrderKey, order_keys
from winnow.analytics.sql.relations import Relation, RowSource
from winnow.analytics.sql.row_sources import limit_of, own_names, row_source
from winnow.analytics.sql.sql_text import parsed

PREFIX = "winnow_"
"""Before the names of columns that the subquery gets for its order."""


@dataclass(frozen=True, kw_only=True)
class FirstRows:
    keys: tuple[OrderKey, ...]
    count: int
    choosing: str | None = None
    """What is wrong with the order, if it could put one row before all others."""

    def columns_shown(self) -> list[exp.Expr]:
        """The keys of a row, by their own names."""
        return [exp.alias_(exp.column(PREFIX + key.name), key.name) for key in self.keys]


def take_first(tree: exp.Select, tables: Mapping[str, Relation]) -> tuple[FirstRows | None, exp.Select | None]:
    """ORDER BY and LIMIT of the subquery in FROM, which are taken out of the statement; and the subquery."""
    inner = _subquery(tree)
    if inner is None or not inner.args.get("limit"):
        return None, None
    count, order = limit_of(inner), inner.args.get("order")
    assert count is not None
    if order is None:
        raise refused(inner.args["limit"], "LIMIT in a subquery needs ORDER BY: without it, any rows could be meant")
    if count == 0 or inner.args.get("offset"):
        raise refused(inner.args["limit"], "a subquery with ORDER BY takes LIMIT 1 or more, and no OFFSET")
    if tree.args.get("where"):
        where = (
            "WHERE beside a subquery with LIMIT is not supported; write it into the subquery, or as FILTER (WHERE …)"
        )
        raise refused(tree.args["where"], where)
    source = row_source(inner, tables)
    nodes = []
    for node in order.expressions:
        changed = node.copy()
        changed.set("this", own_names(node.this, source))
        nodes.append(changed)
    keys = order_keys(exp.Order(expressions=nodes), source.described)
    choosing = [node for node in order.expressions if not _keeps_order(node.this, source)]
    for part in ("order", "limit"):
        inner.args[part].pop()
    wrong = "ORDER BY beside LIMIT takes columns and distances: a condition could put one row before all others"
    return FirstRows(keys=keys, count=count, choosing=str(refused(choosing[0], wrong)) if choosing else None), inner


def _keeps_order(node: exp.Expr, source: RowSource) -> bool:
    if is_distance(node, source.described):
        return True
    known = describe_expression(node, source.described)
    return known.ordered and not known.conditional and not conditions_in(node)


def add_keys(inner: exp.Select, first: FirstRows) -> None:
    """The subquery shows its keys, too."""
    for key in first.keys:
        inner.append("expressions", exp.alias_(parsed(key.sql), PREFIX + key.name))


def _subquery(tree: exp.Select) -> exp.Select | None:
    from_ = tree.args.get("from_")
    node = from_.this if from_ is not None else None
    if isinstance(node, exp.Table):
        with_ = tree.args.get("with_")
        named = [each for each in (with_.expressions if with_ else ()) if each.alias.lower() == node.name.lower()]
        node = named[0] if named else None
    inner = node.this if isinstance(node, exp.Subquery | exp.CTE) else None
    return inner if isinstance(inner, exp.Select) else None
