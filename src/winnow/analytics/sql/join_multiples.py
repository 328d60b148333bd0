"""How often a statement's joins may count one unit: the tables beside the one that has it, and by which columns."""

from collections.abc import Iterator, Mapping

from sqlglot import exp

from winnow.analytics.sql.joined_subquery import equal_columns
from winnow.analytics.sql.relations import FromItem, Lookup, RowSource


def join_multiples(select: exp.Select, source: RowSource) -> tuple[Lookup, ...]:
    """At most the product of how many rows of each table have the same values in its columns; without columns, of all.

    No condition counts, only which columns are equal: whether a condition holds for somebody is not for errors to tell.
    """
    if len(source.items) == 1:
        return ()
    pairs = list(equal_columns(select, source))
    anchor = next((item for item in source.divided if not item.optional), source.items[0])
    known, others, found = [anchor], [item for item in source.items if item is not anchor], list[Lookup]()
    if len(source.divided) > 1:
        found += _of_unit(anchor, select, source)
    while others:
        columns = {item.alias: {name for one, name, two in pairs if one is item and two in known} for item in others}
        item = max(others, key=lambda each: len(columns[each.alias]))
        if item.relation.name:
            found.append(Lookup(table=item.relation.name, columns=tuple(sorted(columns[item.alias]))))
        elif item.relation.divided:
            found += _of_unit(item, select, source)
        else:
            found += [Lookup(table=name, columns=()) for name in _tables_within(item.node, _defined(select))]
        known.append(item)
        others.remove(item)
    return tuple(found)


def _of_unit(item: FromItem, select: exp.Select, source: RowSource) -> Iterator[Lookup]:
    """The rows that one unit has in each divided table of a part of FROM."""
    for name in _tables_within(item.node, _defined(select)):
        relation = source.known.get(name)
        if relation is not None and relation.divided:
            yield Lookup(table=relation.name, columns=(relation.together,) if relation.together else ())


def _defined(select: exp.Select) -> Mapping[str, exp.Expr]:
    with_ = select.args.get("with_")
    return {each.alias.lower(): each.this for each in (with_.expressions if with_ is not None else ())}


def _tables_within(node: exp.Expr, defined: Mapping[str, exp.Expr]) -> Iterator[str]:
    for table in node.find_all(exp.Table):
        name = table.name.lower()
        if name in defined:
            earlier = {other: each for other, each in defined.items() if other != name}
            yield from _tables_within(defined[name], earlier)
        else:
            yield name
