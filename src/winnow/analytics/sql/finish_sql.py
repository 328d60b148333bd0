"""The statement that ends a query: from a table of what was opened to the answer."""

from collections.abc import Sequence

from sqlglot import exp

from winnow.analytics.sql.parse_sql import check_row_count
from winnow.analytics.sql.query_plan import QueryAggregate, QueryKey
from winnow.analytics.sql.sql_text import error_name, parsed


def finish_sql(
    tree: exp.Select,
    outputs: Sequence[exp.Expr],
    names: Sequence[str],
    conditions: Sequence[exp.Expr],
    order: Sequence[exp.Expr],
    keys: Sequence[QueryKey],
    aggregates: Sequence[QueryAggregate],
) -> str:
    """`outputs`, `conditions` and `order` are written with the names of keys and aggregates."""
    released = [f"TRY_CAST({key.name} AS {key.type}) AS {key.name}" for key in keys]
    for each in aggregates:
        value = f"make_timestamp({each.name}::BIGINT)" if each.date else each.name
        released += [f"CAST({value} AS {each.type}) AS {each.name}", error_name(each.name)]
    inner = parsed(f"SELECT {', '.join(released)} FROM released")  # noqa: S608 - names and types are ours
    shown = [exp.alias_(each, name, quoted=True) for each, name in zip(outputs, names, strict=True)]
    shown += [exp.column(error_name(each)) for each in error_sources(outputs) if each is not None]
    alias = exp.TableAlias(this=exp.to_identifier("released"))
    finish = exp.Select(expressions=shown, from_=exp.From(this=exp.Subquery(this=inner, alias=alias)))
    if conditions:
        finish.set("where", exp.Where(this=exp.and_(*conditions)))
    if order:
        finish.set("order", exp.Order(expressions=list(order)))
    for part in ("limit", "offset"):
        if node := tree.args.get(part):
            check_row_count(node)
            finish.set(part, node.copy())
    return finish.sql("duckdb")


def error_sources(outputs: Sequence[exp.Expr]) -> list[str | None]:
    """By column of the answer: the aggregate that it is, and whose error it has."""
    return [each.name if isinstance(each, exp.Column) and each.name.startswith("g") else None for each in outputs]
