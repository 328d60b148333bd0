"""By which conditions an expression chooses rows: numbers of several conditions can be subtracted from each other, so
none of them may choose few rows (`row_partition.py`).
"""

from itertools import combinations

from sqlglot import exp

from winnow.analytics.sql.describe_expression import COMPARISONS, CONDITIONS

CHOICES = (exp.And, exp.Or, exp.Case, exp.If, exp.Coalesce, exp.Nullif, exp.Greatest, exp.Least)
"""What makes a condition hold for one of several reasons; conjunctions at its top are conditions of their own."""
COMPARED = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.In, exp.Between, exp.Like, exp.ILike, exp.Is)


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


def alternatives_in(condition: exp.Expr) -> list[exp.Expr]:
    """Of a condition that holds for several reasons, what may be one of them: age = 110 OR cost < 1000 adds the only
    person of that age to many. None of one that is a single comparison.
    """
    plain = condition.unnest()
    if isinstance(plain, exp.Not):
        plain = plain.this.unnest()
    if not plain.find(*CHOICES):
        return []
    found = [each for each in plain.find_all(*COMPARED) if not each.find(*CHOICES) and each.find(exp.Column)]
    return list(dict.fromkeys(found))


def _missing(node: exp.Expr) -> exp.Expr:
    return exp.Is(this=_paren(node), expression=exp.null())


def _paren(node: exp.Expr) -> exp.Expr:
    return exp.Paren(this=node.copy())
