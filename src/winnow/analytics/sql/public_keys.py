"""The values of public columns in GROUP BY, as they are in whole tables: no condition on rows of an owner chooses them.

Columns of a join come from several tables. What owners tell is then every value of one table with every value of the
other; which of them meet in a row is not public. Of replicated tables all is public, so conditions on them count.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.join_links import equalities
from winnow.analytics.sql.plan_keys import key_columns
from winnow.analytics.sql.query_plan import QueryKey
from winnow.analytics.sql.relations import FromItem, RowSource
from winnow.analytics.sql.safe_conditions import safe_condition, with_safe_conditions
from winnow.analytics.sql.sql_text import conditions_of, parsed, shown_text

T = TypeVar("T", bound=exp.Expr)


def public_key_sql(tree: exp.Select, source: RowSource, keys: Sequence[QueryKey]) -> str:
    """The values of these keys at an owner."""
    if len(source.items) == 1 and not source.items[0].relation.joined:
        return without_conditions(_select(keys, source.items, tree.args.get("with_"))).sql("duckdb")
    tables = {key.name: _tables_of(key, source, tree) for key in keys}
    replicated = [item for item in source.items if not item.relation.divided]
    shared = tuple(item for item in replicated if any(item in own for own in tables.values()))
    parts: dict[tuple[str, ...], tuple[tuple[FromItem, ...], list[QueryKey]]] = {}
    for key in keys:
        items = tables[key.name] if tables[key.name][0].relation.divided else shared
        parts.setdefault(tuple(item.alias for item in items), (items, []))[1].append(key)
    texts = []
    for place, (aliases, (items, own)) in enumerate(parts.items()):
        select = without_conditions(_select(own, items))
        if not items[0].relation.divided:
            about = [safe_condition(each) for each in _conditions_about(tree, source, aliases)]
            select.set("where", exp.Where(this=exp.and_(*about)) if about else None)
        texts.append(f"({select.sql('duckdb')}) AS p{place}")
    names = ", ".join(f'"{key.name}"' for key in keys)
    with_ = tree.args.get("with_")
    common = f"{without_conditions(with_safe_conditions(with_)).sql('duckdb')} " if with_ is not None else ""
    return f"{common}SELECT {names} FROM {' CROSS JOIN '.join(texts)}"  # noqa: S608 - names are ours


def _select(keys: Sequence[QueryKey], items: Sequence[FromItem], with_: exp.With | None = None) -> exp.Select:
    named = key_columns(keys)
    first, *others = (each.node.copy() for each in items)
    rows = exp.Select(
        with_=with_.copy() if with_ is not None else None,
        expressions=named,
        from_=exp.From(this=first),
        joins=[exp.Join(this=each, kind="CROSS") for each in others],
    )
    return with_safe_conditions(rows.distinct())


def without_conditions(rows: T) -> T:
    """The same SELECT of all rows; of joins what is left is which columns are equal."""
    for where in list(rows.find_all(exp.Where)):
        where.pop()
    for join in rows.find_all(exp.Join):
        if join.args.get("on"):
            equal = [exp.EQ(this=one.copy(), expression=other.copy()) for one, other in equalities(join.args["on"])]
            join.set("on", exp.and_(*equal) if equal else exp.true())
    return rows


def _tables_of(key: QueryKey, source: RowSource, tree: exp.Select) -> tuple[FromItem, ...]:
    """The tables whose columns a key is made of: one that is divided, or any number of replicated ones."""
    node = parsed(key.sql)
    named = {source.item_of(column) for column in node.find_all(exp.Column)}
    found = tuple(item for item in source.items if item in named)
    shown = shown_text(node)
    if len(found) > 1 and any(item.relation.divided for item in found):
        raise refused(tree, f"GROUP BY {shown}: it is made of several tables and has no list of values")
    if any(item.optional for item in found):
        raise refused(tree, f"GROUP BY {shown}: LEFT JOIN may leave it empty, and it has no list of values")
    if any(item.relation.joined for item in found):
        raise refused(tree, f"GROUP BY {shown}: name the tables of the subquery in FROM itself")
    return found


def _conditions_about(tree: exp.Select, source: RowSource, aliases: Sequence[str]) -> Iterator[exp.Expr]:
    """The conditions on columns of these tables alone."""
    for each in conditions_of(tree, left_joins=False):
        if each.find(exp.Select) is None:
            items = [source.item_of(column) for column in each.find_all(exp.Column)]
            if items and all(item is not None and item.alias in aliases for item in items):
                yield each
