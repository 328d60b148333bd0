"""HISTOGRAM(x, [edges]), which becomes one count for each bin: bins are suppressed like any other condition's rows."""

from itertools import pairwise

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import HISTOGRAM, refused

MAX_BINS = 60
ABOVE = "above"
"""The bin beyond the last edge."""


def expand_histograms(tree: exp.Expr) -> exp.Expr:
    """The tree with HISTOGRAM written out: a map from each edge to the rows up to it and beyond the edge before."""
    return tree.transform(_expanded)


def _expanded(node: exp.Expr) -> exp.Expr:
    if not isinstance(node, exp.Anonymous) or str(node.this).upper() != "HISTOGRAM":
        return node
    named = node.parent.parent if isinstance(node.parent, exp.Alias) else node.parent
    if not isinstance(named, exp.Select):
        raise refused(node, "HISTOGRAM stands alone in SELECT: it is many numbers, and not one")
    if len(node.expressions) != 2 or not isinstance(node.expressions[1], exp.Array):
        line = "HISTOGRAM takes a column and the upper edges of its bins: HISTOGRAM(x, [10, 20, 30])"
        raise refused(node, f"{line}; values that are listed can be counted by GROUP BY")
    value, edges = node.expressions[0], node.expressions[1].expressions
    numbers = [_number(each) for each in edges]
    if not 0 < len(edges) <= MAX_BINS or any(each is None for each in numbers):
        raise refused(node, f"HISTOGRAM takes 1 to {MAX_BINS} edges, which are numbers")
    if any(not low < high for low, high in pairwise(each for each in numbers if each is not None)):
        raise refused(node, "the edges of HISTOGRAM must grow")
    conditions: list[exp.Expr] = [exp.LTE(this=_paren(value), expression=edges[0].copy())]
    conditions += [
        exp.and_(exp.GT(this=_paren(value), expression=low.copy()), exp.LTE(this=_paren(value), expression=high.copy()))
        for low, high in pairwise(edges)
    ]
    conditions.append(exp.GT(this=_paren(value), expression=edges[-1].copy()))
    counts = [
        exp.Filter(this=exp.Count(this=exp.Star(), big_int=True), expression=exp.Where(this=each))
        for each in conditions
    ]
    keys = [exp.Literal.string(each.sql("duckdb")) for each in edges] + [exp.Literal.string(ABOVE)]
    found = exp.Map(keys=exp.Array(expressions=keys), values=exp.Array(expressions=counts))
    for each in (found, found.args["keys"], found.args["values"]):
        each.meta[HISTOGRAM] = True
    return found if isinstance(node.parent, exp.Alias) else exp.alias_(found, f"histogram({value.sql('duckdb')})")


def _paren(node: exp.Expr) -> exp.Expr:
    return exp.Paren(this=node.copy())


def _number(node: exp.Expr) -> float | None:
    inner = node.this if isinstance(node, exp.Neg) else node
    if not isinstance(inner, exp.Literal) or inner.is_string:
        return None
    return -float(inner.this) if isinstance(node, exp.Neg) else float(inner.this)
