"""The aggregate functions that can be asked for, and whether one could tell a single row."""

from collections.abc import Sequence

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.argument_terms import may_be_summed, product
from winnow.analytics.sql.described import Described
from winnow.analytics.sql.query_plan import SEARCHES, SPREADS, Function

FUNCTIONS: dict[type[exp.Expr], Function] = {
    exp.Count: "count",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Variance: "var",
    exp.VariancePop: "var_pop",
    exp.Stddev: "stddev",
    exp.StddevSamp: "stddev",
    exp.StddevPop: "stddev_pop",
    exp.Corr: "corr",
    exp.Min: "min",
    exp.Max: "max",
    exp.Median: "quantile_cont",
    exp.PercentileCont: "quantile_cont",
    exp.PercentileDisc: "quantile",
    exp.Quantile: "quantile",
}


def tells_rows(function: Function, given: Sequence[Described]) -> bool:
    """Whether arguments with such terms could tell a single row."""
    if function == "count" or all(each.level == "public" for each in given):
        return False
    if function in SEARCHES:
        return not all(each.ordered for each in given)
    terms = [each.terms for each in given]
    if function in (*SPREADS, "corr"):
        terms += [product(one, other) for one in terms for other in terms]
    return not all(may_be_summed(each) for each in terms)


def function_name(node: exp.Expr) -> str:
    return node.sql_name() if isinstance(node, exp.Func) else type(node).__name__.upper()


def quantile_level(node: exp.Expr) -> float | None:
    """Between 0 and 1; None of what is no quantile."""
    if isinstance(node, exp.Median):
        return 0.5
    given = node.args.get("quantile") if isinstance(node, exp.Quantile) else node.args.get("expression")
    if not isinstance(node, exp.Quantile | exp.PercentileCont | exp.PercentileDisc):
        return None
    if not isinstance(given, exp.Literal) or given.is_string or not 0 < float(given.this) < 1:
        raise refused(node, "a quantile takes a level between 0 and 1, such as QUANTILE_CONT(x, 0.9)")
    return float(given.this)
