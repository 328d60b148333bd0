"""Conditions, and columns of subqueries, that fail on no row: an error that depends on a row would tell of it.

A condition is tried (NULL where it fails) unless it compares two columns, which cannot fail, and by which DuckDB finds
the rows to join. DuckDB tries nothing that holds a subquery, so the parts of such a condition are tried one by one.
"""

from typing import TypeVar

from sqlglot import exp

from winnow.analytics.sql.sql_text import tried

T = TypeVar("T", bound=exp.Expr)
KIND = "kind"
"""Of a column of a subquery: what is known of its type."""


def with_safe_conditions(tree: T) -> T:
    """The statement with all its conditions of WHERE and ON tried, and in subqueries their columns, too."""
    changed = tree.copy()
    for select in reversed(list(changed.find_all(exp.Select))):  # the innermost first
        if select is not changed:
            _try_columns(select)
        where = select.args.get("where")
        if where is not None:
            where.set("this", safe_condition(where.this))
        for join in select.args.get("joins") or ():
            if join.args.get("on"):
                join.set("on", safe_condition(join.args["on"]))
    return changed


def _try_columns(select: exp.Select) -> None:
    """Columns that are computed may be compared, or joined by UNION ALL, with those of a table, and DuckDB fails on a
    row that it cannot convert for that: decimals become DOUBLE, which everything can, and dates fit TIMESTAMP.
    """
    for each in (one for one in select.expressions if isinstance(one, exp.Alias)):
        kind, value = each.meta.get(KIND), each.this
        if isinstance(value, exp.Column | exp.Window):
            continue
        if kind == "number":
            each.set("this", tried(value, "DOUBLE"))
            continue
        whole = exp.Anonymous(this="TRY", expressions=[value.copy()])
        if kind == "date":
            fits = exp.Not(this=exp.Is(this=tried(value, "TIMESTAMP"), expression=exp.null()))
            each.set("this", exp.case().when(fits, whole))
        elif not isinstance(value, exp.Literal):
            each.set("this", whole)


def safe_condition(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.And | exp.Or):
        return type(node)(this=safe_condition(node.this), expression=safe_condition(node.expression))
    if isinstance(node, exp.Not | exp.Paren):
        return type(node)(this=safe_condition(node.this))
    if isinstance(node, exp.Exists) or (isinstance(node, exp.In) and node.args.get("query")):
        return node.copy()
    if isinstance(node, exp.EQ) and isinstance(node.this, exp.Column) and isinstance(node.expression, exp.Column):
        return node.copy()
    return tried(node, "BOOLEAN")
