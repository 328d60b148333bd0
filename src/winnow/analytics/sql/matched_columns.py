"""What two owners match rows by: columns of a table, of all its rows. Conditions, and tables that a subquery joins,
choose none of them: the owners learn which identifiers both have, and would learn whom a condition holds for.
"""

from collections.abc import Sequence

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.relations import FromItem, RowSource

JOINED = "key"
"""With a number: a column that says what a row is joined by."""


def matched_rows_sql(
    tree: exp.Select, item: FromItem, keys: Sequence[exp.Column], selects: Sequence[tuple[exp.Select, RowSource]]
) -> str:
    """All rows of the table that has the keys of one side of a join."""
    with_ = tree.args.get("with_")
    defined = {each.alias.lower(): each.this for each in (with_.expressions if with_ is not None else ())}
    names = [each.name.lower() for each in keys]
    while not item.relation.name:
        item, names = _within(item, names, defined, {id(select): source for select, source in selects})
    columns = [
        exp.alias_(exp.column(name, quoted=True), f"{JOINED}{place}", quoted=True) for place, name in enumerate(names)
    ]
    table = exp.Table(this=exp.to_identifier(item.relation.name, quoted=True))
    return exp.Select(expressions=columns, from_=exp.From(this=table)).sql("duckdb")


def _within(
    item: FromItem, names: Sequence[str], defined: dict[str, exp.Expr], sources: dict[int, RowSource]
) -> tuple[FromItem, list[str]]:
    """What a subquery has these columns from."""
    select = defined.get(item.node.name.lower()) if isinstance(item.node, exp.Table) else item.node.this
    source = sources.get(id(select))
    if not isinstance(select, exp.Select) or source is None:
        raise refused(item.node, "a join between owners is by columns of a table, or of a subquery of one")
    shown = {each.alias_or_name.lower(): each.unalias() for each in select.expressions if each.alias_or_name}
    columns = [shown.get(name, exp.column(name)) for name in names]
    items = {source.item_of(each) if isinstance(each, exp.Column) else None for each in columns}
    found = items.pop() if len(items) == 1 else None
    if found is None or not found.relation.divided:
        raise refused(
            item.node, f"a join between owners is by columns of one table; {', '.join(names)} is made of others"
        )
    return found, [each.name.lower() for each in columns]
