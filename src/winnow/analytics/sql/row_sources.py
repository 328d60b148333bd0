"""FROM: which columns the rows of a statement have. Subqueries stay within an owner: they choose rows and compute.

Joins within an owner are the joins of all rows where tables are replicated, or lie together by what they are joined on
(`join_links.py`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import AGGREGATES, refused
from winnow.analytics.sql.describe_expression import describe_condition, describe_expression
from winnow.analytics.sql.described import Described, either
from winnow.analytics.sql.join_links import check_links, refuse_distance_join
from winnow.analytics.sql.joined_subquery import joined_often
from winnow.analytics.sql.parse_sql import check_row_count
from winnow.analytics.sql.relations import FromItem, KnownTables, Lookup, Relation, RowSource
from winnow.analytics.sql.safe_conditions import KIND
from winnow.analytics.sql.sql_text import written_conditions
from winnow.analytics.sql.subquery_marks import marked_columns, marked_divisions, marked_union
from winnow.core import suggest
from winnow.core.untrusted_text import one_line


def row_source(
    select: exp.Select, tables: Mapping[str, Relation], outer: RowSource | None = None, *, apart: bool = False
) -> RowSource:
    """The source of a SELECT, whose joins and conditions are checked; `tables` are those of the owner, or of two owners
    that have them `apart`.
    """
    known = KnownTables(tables)
    with_ = select.args.get("with_")
    for cte in with_.expressions if with_ is not None else ():
        if cte.alias.lower() in known.defined:
            raise refused(cte, f"WITH has two tables called '{one_line(cte.alias)}'")
        known.defined.add(cte.alias.lower())
        known[cte.alias.lower()] = _rows_of(cte.this, known, shown=True)
    from_ = select.args.get("from_")
    if from_ is None:
        raise refused(select, f"the statement has no FROM; name a table: {', '.join(tables)}")
    source = RowSource(items=(_item(from_.this, known),), known=known, merged={}, outer=outer, apart=apart)
    for join in select.args.get("joins") or ():
        source = _joined(source, join, known)
    if apart:
        refuse_distance_join(select, source)
    for written in written_conditions(select):
        check_condition(written, source)
    if not apart:
        check_links(select, source)
    known.sources.append((select, source))
    return source


def _joined(source: RowSource, join: exp.Join, known: Mapping[str, Relation]) -> RowSource:
    item = _item(join.this, known)
    if join.side == "LEFT":
        item = replace(item, optional=True)
    if any(each.alias == item.alias for each in source.items):
        raise refused(join, f"two tables in FROM are called '{one_line(item.alias)}'; give one an alias")
    merged = dict(source.merged)
    for name in (each.name.lower() for each in join.args.get("using") or ()):
        owner = source.item_of(exp.column(name))
        if owner is None or name not in item.relation.columns:
            raise refused(join, f"USING ({one_line(name)}): both sides of the join need such a column")
        merged[name] = owner.alias
    return replace(source, items=(*source.items, item), merged=merged)


def _item(node: exp.Expr, known: Mapping[str, Relation]) -> FromItem:
    if isinstance(node, exp.Table):
        if node.name.lower() not in known:
            raise refused(node, f"no table '{one_line(node.name)}'; {suggest(node.name, known, at_most=12)}")
        return FromItem(alias=(node.alias or node.name).lower(), relation=known[node.name.lower()], node=node)
    if isinstance(node, exp.Subquery):
        return FromItem(alias=node.alias.lower(), relation=_rows_of(node.this, known, shown=True), node=node)
    raise refused(node, f"{type(node).__name__.upper()} in FROM is not supported")


def _rows_of(
    node: exp.Expr, known: Mapping[str, Relation], outer: RowSource | None = None, *, shown: bool = False
) -> Relation:
    """The rows of a subquery, which are `shown` to the statement around it where they stand in FROM."""
    if isinstance(node, exp.Subquery):
        return _rows_of(node.this, known, outer, shown=shown)
    if isinstance(node, exp.Union):
        return _united(node, known, outer, shown=shown)
    if not isinstance(node, exp.Select):
        raise refused(node, f"{type(node).__name__.upper()} in FROM is not supported")
    for name, words in SUBQUERY_PARTS.items():
        if node.args.get(name):
            raise refused(node, f"{words} in a subquery would need the rows of all owners; it is not supported")
    _refuse_aggregates(node)
    source = row_source(node, known, outer)
    columns = _projected(node, source)
    lookups, repeated = joined_often(node, source)
    divisions: tuple[str, ...] = ()
    if shown:
        columns, divisions = marked_divisions(node, source, marked_columns(node, source, columns))
    return Relation(
        columns=columns,
        divisions=divisions,
        divided=bool(source.divided),
        joined=len(source.items) > 1 or source.items[0].relation.joined,
        tables=frozenset[str]().union(*(item.relation.tables for item in source.items)),
        told=any(item.relation.told for item in source.items),
        lookups=lookups,
        repeated=repeated,
    )


def _united(node: exp.Union, known: Mapping[str, Relation], outer: RowSource | None, *, shown: bool) -> Relation:
    """The rows of UNION ALL. A table stands there once: a row that counts several times would make up the minimum."""
    parts = list(_parts(node))
    found = [_rows_of(each, known, outer) for each in parts]
    first = found[0]
    for place, each in enumerate(found):
        if len(each.columns) != len(first.columns):
            raise refused(node, f"UNION ALL joins {len(first.columns)} columns with {len(each.columns)}")
        if each.divided != first.divided:
            raise refused(node, "UNION ALL of a replicated table would count its rows once for each owner")
        if twice := each.tables & frozenset[str]().union(*(other.tables for other in found[:place])):
            raise refused(
                node, f"UNION ALL would count rows of {one_line(min(twice))} twice; choose them by WHERE … OR …"
            )
    listed = [each.columns for each in found]
    if shown:
        columns = marked_union(node, parts, listed)
    else:
        columns = {name: either([[*own.values()][place] for own in listed]) for place, name in enumerate(listed[0])}
    return Relation(
        columns=columns,
        divided=first.divided,
        joined=any(each.joined for each in found),
        tables=frozenset[str]().union(*(each.tables for each in found)),
        told=any(each.told for each in found),
        lookups=frozenset[Lookup]().union(*(each.lookups for each in found)),
        repeated=frozenset[str]().union(*(each.repeated for each in found)),
    )


def _parts(node: exp.Expr) -> Iterator[exp.Select]:
    """The SELECTs of UNION ALL."""
    if isinstance(node, exp.Union):
        yield from _parts(node.this)
        yield from _parts(node.expression)
    elif isinstance(node, exp.Subquery):
        yield from _parts(node.this)
    elif isinstance(node, exp.Select):
        yield node
    else:
        raise refused(node, f"{type(node).__name__.upper()} in FROM is not supported")


SUBQUERY_PARTS = {
    "group": "GROUP BY",
    "having": "HAVING",
    "order": "ORDER BY",
    "limit": "LIMIT",
    "offset": "OFFSET",
}


def _refuse_aggregates(select: exp.Select) -> None:
    for each in select.expressions:
        if found := each.find(*AGGREGATES):
            raise refused(found, "an aggregate in a subquery would need the rows of all owners; it is not supported")


def _projected(select: exp.Select, source: RowSource) -> dict[str, Described]:
    """The columns of a subquery. No two have the same name, so what is checked here is what DuckDB takes."""
    found: dict[str, Described] = {}
    for each in select.expressions:
        if isinstance(each, exp.Star):
            named = [(item, name) for item in source.items for name in item.relation.columns]
            first = [each for each in named if _is_first(*each, source)]
            columns: list[tuple[str, exp.Expr]] = [(name, exp.column(name, table=item.alias)) for item, name in first]
        elif each.alias_or_name:
            columns = [(each.alias_or_name.lower(), each.unalias())]
        else:
            raise refused(each, "an expression of a subquery needs a name; write … AS name")
        for name, value in columns:
            if name in found:
                raise refused(each, f"a subquery has two columns called '{one_line(name)}'; give one another name")
            found[name] = describe_expression(value, source.described)
        if isinstance(each, exp.Alias):
            name = each.alias.lower()
            each.meta[KIND] = _kind(found[name])
            if each.meta[KIND] == "number":  # which becomes a DOUBLE (`safe_conditions.py`)
                found[name] = replace(found[name], duckdb_type="")
    return found


def _kind(known: Described) -> str:
    """Its type, which decimals of several widths have in common."""
    return "number" if known.type is None and known.bounded else known.type or ""


def _is_first(item: FromItem, name: str, source: RowSource) -> bool:
    """Of columns of USING, SELECT * has the first alone."""
    return source.merged.get(name, item.alias) == item.alias


def own_names(node: exp.Expr, source: RowSource) -> exp.Expr:
    """An expression with its columns by their own names alone."""

    def change(each: exp.Expr) -> exp.Expr:
        if not isinstance(each, exp.Column):
            return each
        source.described(each)
        written = own_column(each.name.lower())
        written.this.meta.update(each.this.meta)
        return written

    return node.copy().transform(change)


def own_column(name: str) -> exp.Column:
    return exp.Column(this=exp.to_identifier(name, quoted=True))


def limit_of(select: exp.Select) -> int | None:
    node = select.args.get("limit")
    if node is None:
        return None
    check_row_count(node)
    return int(node.expression.this)


def check_condition(node: exp.Expr, source: RowSource, *, required: bool = True) -> None:
    """Of WHERE or ON. `required`: no row passes for which it does not hold."""
    if isinstance(node, exp.And | exp.Or | exp.Not | exp.Paren):
        for each in node.iter_expressions():
            check_condition(each, source, required=required and not isinstance(node, exp.Or | exp.Not))
    elif isinstance(node, exp.Exists):
        _rows_of(_without_columns(node), source.known, source)
    elif isinstance(node, exp.In) and node.args.get("query"):
        _check_membership(node, source, required)
    else:
        describe_condition(node, source.described)


def _without_columns(node: exp.Exists) -> exp.Expr:
    """The subquery of EXISTS, whose columns nobody reads; it stays where it is in the statement."""
    select: exp.Expr = node.this
    if isinstance(select, exp.Select):
        _refuse_aggregates(select)
        select.set("expressions", [exp.alias_(exp.Literal.number(1), "found")])
    return select


def _check_membership(node: exp.In, source: RowSource, required: bool) -> None:
    """x IN (SELECT y …): rows with the same value lie together, or all owners have the same y."""
    if not isinstance(node.this, exp.Column):
        raise refused(node, "IN (SELECT …) takes a column before it")
    selected = _rows_of(node.args["query"], source.known)
    known = source.described(node.this)
    if len(selected.columns) != 1 or not isinstance(next(iter(node.args["query"].this.selects)).unalias(), exp.Column):
        raise refused(node, "IN (SELECT …) takes one column within")
    (other,) = selected.columns.values()
    if not selected.divided:
        return
    if not required:
        raise refused(node, "NOT IN (SELECT …) and OR depend on the rows of all owners; write NOT EXISTS (SELECT …)")
    if known.together is None or known.together != other.together:
        raise refused(
            node, f"IN (SELECT …) within an owner: {one_line(node.this.name)} and what is selected must lie together"
        )
