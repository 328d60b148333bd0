"""Parts of generated SQL text."""

from collections.abc import Sequence
from itertools import count

import sqlglot
from sqlglot import exp


def parsed(sql: str) -> exp.Expr:
    """What was generated here before."""
    return sqlglot.parse_one(sql, read="duckdb")


def text_of(node: exp.Expr) -> str:
    """The same for expressions that are written alike."""
    return node.sql("duckdb")


def tried(node: exp.Expr, kind: str) -> exp.Expr:
    """NULL where it fails: an error that depends on a row would tell of it."""
    cast = exp.Cast(this=exp.Paren(this=node.copy()), to=exp.DataType.build(kind, dialect="duckdb"))
    return exp.Anonymous(this="TRY", expressions=[cast])


def error_name(aggregate: str) -> str:
    """The column of an aggregate's standard error."""
    return f"{aggregate}_error"


def unique_names(names: Sequence[str]) -> list[str]:
    """Names of columns; one that is there already gets a number."""
    found: list[str] = []
    for name in names:
        free = (f"{name}_{number}" if number else name for number in count())
        found.append(next(each for each in free if each.lower() not in {one.lower() for one in found}))
    return found
