"""The statements by which two owners select their rows of a join between them."""

from collections.abc import Sequence

from sqlglot import exp

from winnow.analytics.sql.matched_columns import JOINED, matched_rows_sql
from winnow.analytics.sql.owner_join import OwnerJoin
from winnow.analytics.sql.plan_keys import key_columns
from winnow.analytics.sql.public_keys import public_key_sql
from winnow.analytics.sql.query_plan import Argument, JoinSide, QueryKey
from winnow.analytics.sql.relations import RowSource
from winnow.analytics.sql.safe_conditions import safe_condition, with_safe_conditions
from winnow.analytics.sql.sql_text import parsed


def join_sides(
    tree: exp.Select,
    source: RowSource,
    join: OwnerJoin,
    keys: Sequence[QueryKey],
    arguments: Sequence[Argument],
    selects: Sequence[tuple[exp.Select, RowSource]],
) -> tuple[JoinSide, JoinSide]:
    """`arguments` are all numbers that the owners select, indicators of conditions among them; `selects` all SELECTs of
    the statement.
    """
    left, right = (_side(place, tree, source, join, keys, arguments, selects) for place in (0, 1))
    return left, right


def _side(
    place: int,
    tree: exp.Select,
    source: RowSource,
    join: OwnerJoin,
    keys: Sequence[QueryKey],
    arguments: Sequence[Argument],
    selects: Sequence[tuple[exp.Select, RowSource]],
) -> JoinSide:
    def own(sql: str) -> bool:
        return (source.owner_of(parsed(sql)) or 0) == place

    own_keys = tuple(key for key in keys if own(key.sql))
    own_arguments = [each for each in arguments if own(each.sql)]
    unlisted = [key for key in own_keys if key.values is None]
    joined = [exp.alias_(each.copy(), f"{JOINED}{number}", quoted=True) for number, each in enumerate(join.keys[place])]
    named = key_columns(own_keys)
    numbers = [exp.alias_(parsed(each.sql), each.name) for each in own_arguments]
    safe = with_safe_conditions(tree)
    item = (safe.args["from_"] if place == 0 else safe.args["joins"][0]).this
    rows = exp.Select(
        with_=safe.args.get("with_"), expressions=[*joined, *named, *numbers], from_=exp.From(this=item.copy())
    ).copy()
    if join.conditions[place]:
        rows.set("where", exp.Where(this=exp.and_(*(safe_condition(each) for each in join.conditions[place]))))
    return JoinSide(
        tables=join.tables[place],
        local_sql=rows.sql("duckdb"),
        matched_sql=matched_rows_sql(tree, source.items[place], join.keys[place], selects),
        public_sql=public_key_sql(tree, source, unlisted) if unlisted else None,
        keys=own_keys,
        names=frozenset(each.name for each in own_arguments),
        whole=bool(source.items[place].relation.name) and not join.conditions[place],
    )
