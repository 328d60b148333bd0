"""A join between two owners on a key: what is joined, and which conditions are on whose rows.

Everything else of such a statement is about columns of one owner: a condition, a key of GROUP BY, an argument of an
aggregate. So each owner works it out alone, and the owners multiply 0/1 rows and sums by key (`matched_query.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.plan_near_join import NearGrid, WrittenNear
from winnow.analytics.sql.relations import RowSource
from winnow.analytics.sql.sql_text import conditions_of, shown_text
from winnow.core.untrusted_text import one_line

NUMBERS = ("integer", "number")


@dataclass(frozen=True, kw_only=True)
class OwnerJoin:
    """By side: the columns that are equal, and the conditions on its rows."""

    keys: tuple[list[exp.Column], list[exp.Column]]
    conditions: tuple[list[exp.Expr], list[exp.Expr]]
    tables: tuple[tuple[str, ...], tuple[str, ...]]
    """Whose rows are divided."""
    near: NearGrid | None = None
    """Where rows are joined by their distance; then `keys` are coordinates."""


def owner_join(tree: exp.Select, source: RowSource, near: WrittenNear | None = None) -> OwnerJoin:
    """The join of a statement whose tables are at two owners; ConfigError names what is not possible between them."""
    joins = tree.args.get("joins") or []
    if len(source.items) != 2:
        raise refused(
            source.items[-1].node, "a join between owners has two sides; join further tables of one owner in a subquery"
        )
    if joins[0].side:
        raise refused(joins[0], f"{joins[0].side} JOIN between owners is not supported; INNER JOIN is")
    found = OwnerJoin(keys=([], []), conditions=([], []), tables=_tables(tree, source))
    for name in (each.name for each in joins[0].args.get("using") or ()):
        for place, item in enumerate(source.items):
            found.keys[place].append(exp.column(name, table=item.alias, quoted=True))
    for each in conditions_of(tree):
        _add(each, found, source)
    if near is not None:
        if found.keys[0]:
            raise refused(near.node, "a join between owners is by a key or by distance, and not by both")
        sides = near.by_side(source)
        return replace(found, keys=sides, near=near.grid(sides, source))
    if not found.keys[0]:
        raise refused(
            joins[0],
            "a join between owners needs a key or a distance; write ON a.key = b.key, or ON "
            "DWITHIN(a.x, a.y, b.x, b.y, r)",
        )
    for one, other in zip(*found.keys, strict=True):
        _check_key(one, other, source)
    return found


def _add(condition: exp.Expr, found: OwnerJoin, source: RowSource) -> None:
    if condition.find(exp.Select):
        raise refused(condition, "a subquery in the condition of a join between owners is not supported")
    if isinstance(condition, exp.EQ):
        sides = [each for each in (condition.this, condition.expression) if isinstance(each, exp.Column)]
        places = [source.owner_of(each) for each in sides]
        if sorted(places, key=str) == [0, 1]:
            for place, column in zip(places, sides, strict=True):
                assert place is not None
                found.keys[place].append(source.written(column))
            return
    found.conditions[source.owner_of(condition) or 0].append(condition)


def _check_key(one: exp.Column, other: exp.Column, source: RowSource) -> None:
    types = [source.described(each).type for each in (one, other)]
    if len({"number" if each in NUMBERS else each for each in types}) > 1:
        raise refused(one, f"{shown_text(one)} = {shown_text(other)} compares {types[0]} with {types[1]}")
    for each in (one, other):
        known = source.described(each)
        if known.level != "public" and not known.key:
            raise refused(
                each, f"column '{one_line(each.name)}' is {known.level}; declare key = true to join owners by it"
            )


def _tables(tree: exp.Select, source: RowSource) -> tuple[tuple[str, ...], tuple[str, ...]]:
    left, right = (tuple(dict.fromkeys(_named(item.node, tree, source))) for item in source.items)
    return left, right


def _named(node: exp.Expr, tree: exp.Select, source: RowSource) -> Iterator[str]:
    """The tables that a part of FROM reads, also by way of WITH."""
    with_ = tree.args.get("with_")
    defined = {each.alias.lower(): each.this for each in (with_.expressions if with_ is not None else ())}
    for table in node.find_all(exp.Table):
        name = table.name.lower()
        if name in defined:
            yield from _named(defined[name], tree, source)
        elif name in source.known and source.known[name].divided:
            yield name
