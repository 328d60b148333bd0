"""Conditions of a statement in PostgreSQL's words: those that mean there exactly what they mean in DuckDB.

What is not listed here or in `postgres_values.py` is not translated, and DuckDB evaluates it on rows that were fetched.
PostgreSQL ends a statement where an expression fails on a row, so nothing that may fail is translated either: no
division, no cast, no arithmetic whose range is not known. Text is compared by its bytes, as in DuckDB.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from sqlglot import exp

from winnow.analytics.sql.postgres_values import VALUES, NotTranslatedError, Translate, Translated, alike, texts

COMPARED: Mapping[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
    exp.NullSafeNEQ: "IS DISTINCT FROM",
}
Cells: TypeAlias = Callable[[exp.Column], Translated | None]
"""A column of the table; None for what is none, or is not kept in a fitting type."""


def postgres_condition(node: exp.Expr, cells: Cells) -> str | None:
    """The condition, or None if it has anything that is not translated."""
    try:
        found = _translated(cells, node)
    except NotTranslatedError:
        return None
    return found.sql if found.kind == "boolean" else None


def _translated(cells: Cells, node: exp.Expr) -> Translated:
    if isinstance(node, exp.Paren):
        return _translated(cells, node.this)
    if isinstance(node, exp.Column) and (cell := cells(node)) is not None:
        return cell
    translate = VALUES.get(type(node)) or CONDITIONS.get(type(node))
    if translate is None:
        raise NotTranslatedError
    return translate(node, partial(_translated, cells))


def _boolean(sql: str) -> Translated:
    return Translated(sql=f"({sql})", kind="boolean")


def _comparison(node: exp.Expr, translate: Translate) -> Translated:
    one, other = alike([translate(node.this), translate(node.expression)])
    return _boolean(f"{one.sql} {COMPARED[type(node)]} {other.sql}")


def _logic(node: exp.Expr, translate: Translate) -> Translated:
    word = "AND" if isinstance(node, exp.And) else "OR"
    return _boolean(f"{_condition(node.this, translate)} {word} {_condition(node.expression, translate)}")


def _condition(node: exp.Expr, translate: Translate) -> str:
    found = translate(node)
    if found.kind != "boolean":
        raise NotTranslatedError
    return found.sql


def _is(node: exp.Expr, translate: Translate) -> Translated:
    part = translate(node.this)
    if isinstance(node.expression, exp.Null):
        return _boolean(f"{part.sql} IS NULL")
    if isinstance(node.expression, exp.Boolean) and part.kind == "boolean":
        return _boolean(f"{part.sql} IS {'TRUE' if node.expression.this else 'FALSE'}")
    raise NotTranslatedError


def _in(node: exp.Expr, translate: Translate) -> Translated:
    listed = node.args.get("expressions")
    if not listed:
        raise NotTranslatedError
    first, *others = alike([translate(each) for each in (node.this, *listed)])
    return _boolean(f"{first.sql} IN ({', '.join(each.sql for each in others)})")


def _between(node: exp.Expr, translate: Translate) -> Translated:
    value, low, high = alike([translate(node.args[part]) for part in ("this", "low", "high")])
    return _boolean(f"{value.sql} BETWEEN {low.sql} AND {high.sql}")


def _like(node: exp.Expr, translate: Translate) -> Translated:
    """A backslash stands for itself in DuckDB."""
    one, other = texts([node.this, node.expression], translate)
    word = "NOT LIKE" if node.args.get("negate") else "LIKE"
    return _boolean(f"{one} {word} {other} ESCAPE ''")


def _found(node: exp.Expr, translate: Translate) -> Translated:
    one, other = texts([node.this, node.expression], translate)
    return _boolean(
        f"starts_with({one}, {other})" if isinstance(node, exp.StartsWith) else f"strpos({one}, {other}) > 0"
    )


CONDITIONS: Mapping[type[exp.Expr], Callable[[exp.Expr, Translate], Translated]] = {
    exp.Boolean: lambda node, translate: _boolean("TRUE" if node.this else "FALSE"),
    **dict.fromkeys(COMPARED, _comparison),
    **dict.fromkeys((exp.And, exp.Or), _logic),
    exp.Not: lambda node, translate: _boolean(f"NOT {_condition(node.this, translate)}"),
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Like: _like,
    **dict.fromkeys((exp.StartsWith, exp.Contains), _found),
}
