"""By which conditions an expression chooses rows: numbers of several conditions can be subtracted from each other, so
none of them may choose few rows (`row_partition.py`).
"""

from collections.abc import Iterator
from itertools import combinations

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.argument_terms import VALUE_CHOICES
from winnow.analytics.sql.describe_expression import COMPARISONS, CONDITIONS
from winnow.analytics.sql.spatial_functions import PLACES
from winnow.analytics.sql.sql_text import conjuncts, text_of
from winnow.core import ConfigError

SEVERAL_REASONS = (exp.And, exp.Or, *VALUE_CHOICES)
"""What makes a condition hold for one of several reasons; conjunctions at its top are conditions of their own."""
MAX_CONDITIONS = 300
"""Of a statement: rows are counted for each, and divided by those before it."""
LOGIC = (exp.And, exp.Or, exp.Not, exp.Paren)


def conditions_in(node: exp.Expr) -> list[exp.Expr]:
    """Conditions of CASE, comparisons that count as numbers, what replaces NULL, which of several is the greatest."""
    if isinstance(node, exp.Star):
        return []
    if isinstance(node, CONDITIONS + COMPARISONS):
        return [node]
    if isinstance(node, exp.Case):
        found: list[exp.Expr] = []
        for each in node.args["ifs"]:
            found.append(exp.EQ(this=node.this.copy(), expression=each.this.copy()) if node.this else each.this)
            found += conditions_in(each.args["true"])
        return found + (conditions_in(node.args["default"]) if node.args.get("default") else [])
    if isinstance(node, exp.If):
        parts = (node.args[part] for part in ("true", "false") if node.args.get(part))
        return [node.this, *(each for part in parts for each in conditions_in(part))]
    return _own_conditions(node) + [each for part in node.iter_expressions() for each in conditions_in(part)]


def _own_conditions(node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, exp.Coalesce):
        return [_missing(each) for each in (node.this, *node.expressions[:-1])]
    if isinstance(node, exp.Nullif):
        return [exp.EQ(this=node.this.copy(), expression=node.expression.copy())]
    if isinstance(node, exp.Greatest | exp.Least):  # NULLs are passed over
        parts = [node.this, *node.expressions]
        larger = [exp.GTE(this=_paren(one), expression=_paren(other)) for one, other in combinations(parts, 2)]
        return [*(_missing(each) for each in parts if each.find(exp.Column)), *larger]
    if isinstance(node, exp.Abs | exp.Sign):
        zero = exp.Literal.number(0)
        return [exp.GT(this=_paren(node.this), expression=zero), exp.LT(this=_paren(node.this), expression=zero.copy())]
    return []


def reasons_in(node: exp.Expr) -> list[exp.Expr]:
    """For what reasons the conditions of an expression hold, and where what follows them has columns, too, do not."""
    if isinstance(node, exp.Star):
        return []
    if isinstance(node, CONDITIONS + COMPARISONS):
        return alternatives_in(node)
    found = [each for part in node.iter_expressions() for each in reasons_in(part)]
    if isinstance(node, exp.Case | exp.If):
        choices = node.args["ifs"] if isinstance(node, exp.Case) else [node]
        values = [*(each.args["true"] for each in choices), node.args.get("default") or node.args.get("false")]
        for place, each in enumerate(choices, 1):
            followed = any(value is not None and value.find(exp.Column) for value in values[place:])
            for part in [each.this] if followed else conjuncts(each.this):
                found += alternatives_in(part)
    return found


def alternatives_in(condition: exp.Expr) -> list[exp.Expr]:
    """Of a condition that holds for several reasons, what may be one of them: age = 110 OR cost < 1000 adds the only
    person of that age to many. None of one that is a single comparison.
    """
    plain = condition.unnest()
    if isinstance(plain, exp.Not):
        plain = plain.this.unnest()
    several = plain.find(*SEVERAL_REASONS) or any(_lists_columns(each) for each in plain.find_all(exp.In))
    return list(dict.fromkeys(_alternatives(plain))) if several else []


def _alternatives(node: exp.Expr) -> Iterator[exp.Expr]:
    """Whatever a condition is put together of: comparisons, columns that are true or false, numbers that are not 0."""
    if isinstance(node, LOGIC):
        for each in node.iter_expressions():
            yield from _alternatives(each)
    elif isinstance(node, exp.In) and _lists_columns(node):
        yield from (exp.EQ(this=_paren(node.this), expression=_paren(each)) for each in node.expressions)
    elif node.find(*SEVERAL_REASONS):
        if not isinstance(node, exp.Case | exp.If):
            yield node
        parts = [node] if isinstance(node, SEVERAL_REASONS) else list(node.iter_expressions())
        for condition in (one for part in parts for one in conditions_in(part)):
            yield from _alternatives(condition)
    elif node.find(exp.Column):
        yield node


def _lists_columns(node: exp.In) -> bool:
    return any(each.find(exp.Column) for each in node.expressions)


def succeeds(node: exp.Expr) -> list[exp.Expr]:
    """That an expression is NULL or no number only where one of its columns is NULL. Few other rows, on which it fails,
    would be what it differs by from a sum without it.
    """
    columns = {text_of(each): each for each in node.find_all(exp.Column)}
    if isinstance(node.unnest(), exp.Column | exp.Star) or not columns:
        return []
    value = exp.Anonymous(this="TRY", expressions=[node.copy()])
    number = exp.TryCast(this=value.copy(), to=exp.DataType.build("DOUBLE", dialect="duckdb"))
    finite = exp.Not(this=exp.Coalesce(this=exp.IsNan(this=number), expressions=[exp.false()]))
    missing = [exp.Is(this=each.copy(), expression=exp.null()) for each in columns.values()]
    there = exp.Not(this=exp.Is(this=value, expression=exp.null()))
    return [exp.or_(*missing, exp.and_(there, finite))]


def too_many_conditions(node: exp.Expr) -> ConfigError:
    return refused(node, f"the statement chooses rows by more than {MAX_CONDITIONS} conditions; ask for less at once")


def comparisons_in(condition: exp.Expr) -> Iterator[exp.Expr]:
    """What AND, OR and NOT join; distances as they are written."""
    if isinstance(condition, LOGIC) and PLACES not in condition.meta:
        for each in condition.iter_expressions():
            yield from comparisons_in(each)
    else:
        yield condition


def _missing(node: exp.Expr) -> exp.Expr:
    return exp.Is(this=_paren(node), expression=exp.null())


def _paren(node: exp.Expr) -> exp.Expr:
    return exp.Paren(this=node.copy())
