"""Parts of generated SQL text."""

from collections.abc import Iterator, Sequence
from itertools import count

import sqlglot
from sqlglot import exp

from winnow.core.untrusted_text import one_line


def parsed(sql: str) -> exp.Expr:
    """What was generated here before."""
    return sqlglot.parse_one(sql, read="duckdb")


def text_of(node: exp.Expr) -> str:
    """The same for expressions that are written alike."""
    return node.sql("duckdb")


def shown_text(node: exp.Expr, longest: int = 60) -> str:
    """As a message shows it: on one line, not too long, without the quotes of names."""
    return one_line(text_of(node))[:longest].replace('"', "")


def conjuncts(node: exp.Expr | None) -> Iterator[exp.Expr]:
    """The conditions that all have to hold."""
    if isinstance(node, exp.Paren):
        yield from conjuncts(node.this)
    elif isinstance(node, exp.And):
        yield from conjuncts(node.this)
        yield from conjuncts(node.expression)
    elif node is not None:
        yield node


def written_conditions(select: exp.Select, *, left_joins: bool = True) -> Iterator[exp.Expr]:
    """What stands in each ON and in WHERE. ON of a LEFT JOIN keeps no row out, and may be left aside."""
    for join in select.args.get("joins") or ():
        if join.args.get("on") and (left_joins or join.side != "LEFT"):
            yield join.args["on"]
    if select.args.get("where"):
        yield select.args["where"].this


def conditions_of(select: exp.Select, *, left_joins: bool = True) -> Iterator[exp.Expr]:
    """The same, of which all have to hold, one by one."""
    for written in written_conditions(select, left_joins=left_joins):
        yield from conjuncts(written)


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
