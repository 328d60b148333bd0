"""Whether a subquery with joins counts some rows more often than others.

Around it nobody sees which rows it is made of, so it may not choose how often one of them counts, as ON n.number = 1 OR
p.age = 110 does. Each divided table stands there once, and a table that all owners have is looked up by columns that
tell its rows apart: owners check that on its rows, which are no secret.
"""

from collections import Counter
from collections.abc import Iterator

from sqlglot import exp

from winnow.analytics.sql.join_links import equalities
from winnow.analytics.sql.relations import FromItem, Lookup, RowSource
from winnow.analytics.sql.sql_text import written_conditions


def joined_often(select: exp.Select, source: RowSource) -> tuple[frozenset[Lookup], frozenset[str]]:
    """The tables that it looks rows up in; and what counts rows often: divided tables that it has twice, and subqueries
    of replicated ones, whose columns tell nothing apart.
    """
    lookups = set[Lookup]().union(*(item.relation.lookups for item in source.items))
    repeated = set[str]().union(*(item.relation.repeated for item in source.items))
    if source.divided:
        times = Counter(name for item in source.items for name in item.relation.tables)
        repeated |= {name for name, count in times.items() if count > 1}
        lookups |= {*_lookups(select, source)}
        repeated |= {item.alias for item in source.items if not item.relation.divided and not item.relation.name}
    return frozenset(lookups), frozenset(repeated)


def _lookups(select: exp.Select, source: RowSource) -> Iterator[Lookup]:
    """By which columns each replicated table depends on the tables before it, whose rows are known then."""
    pairs = list(equal_columns(select, source))
    known, others = list(source.divided), [item for item in source.items if not item.relation.divided]
    while others:
        columns = {item.alias: {name for one, name, two in pairs if one is item and two in known} for item in others}
        item = max(others, key=lambda each: len(columns[each.alias]))
        yield Lookup(table=item.relation.name, columns=tuple(sorted(columns[item.alias])))
        known.append(item)
        others.remove(item)


def equal_columns(select: exp.Select, source: RowSource) -> Iterator[tuple[FromItem, str, FromItem]]:
    """Pairs of tables with equal columns, both ways: a table, its column, and the other table."""
    for left, right in (pair for written in written_conditions(select) for pair in equalities(written)):
        one, two = source.item_of(left), source.item_of(right)
        if one is not None and two is not None and one is not two:
            yield one, left.name.lower(), two
            yield two, right.name.lower(), one
    for item, join in zip(source.items[1:], select.args.get("joins") or (), strict=True):
        for name in (each.name.lower() for each in join.args.get("using") or ()):
            first = next(each for each in source.items if each.alias == source.merged[name])
            yield item, name, first
            yield first, name, item
