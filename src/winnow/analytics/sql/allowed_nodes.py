"""What SQL may consist of: every node of a syntax tree that is not listed here is refused by its name.

A node may have the arguments that stand beside it and no others, so that nothing of a statement is passed over.
"""

from collections.abc import Mapping

from sqlglot import exp

from winnow.core import ConfigError
from winnow.core.number_text import is_number
from winnow.core.untrusted_text import one_line

OWN_NAMES = "winnow"
"""What names of columns begin with that are added to a statement."""
MAX_TEXTS = 1_000
"""That one text may be joined of, by all subqueries together."""
MAX_PERCENTS = 10
BINARY = ("this", "expression")
UNARY = ("this",)

STRUCTURE: Mapping[type[exp.Expr], tuple[str, ...]] = {
    exp.Select: ("with_", "expressions", "from_", "joins", "where", "group", "having", "order", "limit", "offset"),
    exp.Join: ("this", "on", "using", "side", "kind"),
    exp.From: UNARY,
    exp.Where: UNARY,
    exp.Group: ("expressions",),
    exp.Having: UNARY,
    exp.Order: ("expressions",),
    exp.Ordered: ("this", "desc", "nulls_first"),
    exp.Limit: ("expression",),
    exp.Offset: ("expression",),
    exp.Table: ("this", "alias", "sample"),
    exp.TableAlias: UNARY,
    exp.TableSample: ("method", "percent"),
    exp.Subquery: ("this", "alias"),
    exp.Lateral: ("this", "alias"),
    exp.With: ("expressions",),
    exp.CTE: ("this", "alias"),
    exp.Union: ("with_", "this", "expression"),
    exp.Alias: ("this", "alias"),
    exp.Star: (),
}
EXPRESSIONS: Mapping[type[exp.Expr], tuple[str, ...]] = {
    exp.Column: ("this", "table"),
    exp.Identifier: ("this", "quoted"),
    exp.Literal: ("this", "is_string"),
    exp.Boolean: UNARY,
    exp.Null: (),
    exp.Var: UNARY,
    exp.Paren: UNARY,
    **dict.fromkeys((exp.Neg, exp.Not), UNARY),
    **dict.fromkeys((exp.Add, exp.Sub, exp.Mul, exp.IntDiv, exp.Mod, exp.Pow), BINARY),
    exp.Div: (*BINARY, "typed", "safe"),
    **dict.fromkeys((exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ), BINARY),
    **dict.fromkeys((exp.And, exp.Or), BINARY),
    exp.Is: BINARY,
    exp.In: ("this", "expressions", "query"),
    exp.Exists: UNARY,
    exp.Between: ("this", "low", "high"),
    **dict.fromkeys((exp.Like, exp.ILike), (*BINARY, "negate")),
    exp.Case: ("this", "ifs", "default"),
    exp.If: ("this", "true", "false"),
    **dict.fromkeys((exp.Coalesce, exp.Greatest, exp.Least), ("this", "expressions", "ignore_nulls")),
    exp.Nullif: BINARY,
    **dict.fromkeys((exp.Abs, exp.Floor, exp.Ceil, exp.Sqrt, exp.Exp, exp.Ln, exp.Sign), UNARY),
    **dict.fromkeys((exp.Sin, exp.Cos, exp.Asin, exp.Radians), UNARY),
    exp.Round: ("this", "decimals"),
    exp.Cast: ("this", "to"),
    exp.TryCast: ("this", "to", "safe"),
    exp.DataType: ("this", "expressions", "nested"),
    exp.DataTypeParam: UNARY,
    **dict.fromkeys((exp.Lower, exp.Upper, exp.Length, exp.Trim), UNARY),
    exp.Substring: ("this", "start", "length"),
    exp.Concat: ("expressions", "safe", "coalesce"),
    exp.DPipe: (*BINARY, "safe"),
    **dict.fromkeys((exp.StartsWith, exp.Contains), BINARY),
    exp.Extract: BINARY,
    **dict.fromkeys((exp.Year, exp.Quarter, exp.Month, exp.Week, exp.Day, exp.Hour, exp.Minute), UNARY),
    **dict.fromkeys((exp.DayOfWeek, exp.DayOfWeekIso, exp.DayOfYear), UNARY),
    exp.TimestampTrunc: ("this", "unit"),
    exp.DateTrunc: ("this", "unit"),
    exp.DateDiff: ("this", "expression", "unit", "date_part_boundary"),
    exp.Interval: ("this", "unit"),
}
AGGREGATES: Mapping[type[exp.Expr], tuple[str, ...]] = {
    exp.Count: ("this", "big_int"),
    **dict.fromkeys((exp.Sum, exp.Avg, exp.Min, exp.Max, exp.Median), UNARY),
    **dict.fromkeys((exp.Variance, exp.VariancePop, exp.Stddev, exp.StddevSamp, exp.StddevPop), UNARY),
    exp.Corr: BINARY,
    exp.Quantile: ("this", "quantile"),
    **dict.fromkeys((exp.PercentileCont, exp.PercentileDisc), BINARY),
    exp.Filter: BINARY,
}
ALLOWED = {**STRUCTURE, **EXPRESSIONS, **AGGREGATES}

CAST_TYPES = {
    *(exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT, exp.DType.FLOAT, exp.DType.DOUBLE),
    *(exp.DType.DECIMAL, exp.DType.TEXT, exp.DType.VARCHAR, exp.DType.BOOLEAN, exp.DType.DATE, exp.DType.TIMESTAMP),
    exp.DType.TIMESTAMPNTZ,
}

JOINS = ("", "INNER", "CROSS", "LEFT")
HISTOGRAM = "histogram"
"""The mark of nodes that HISTOGRAM was written out to; nobody can write such ones."""

SPOKEN: Mapping[str, str] = {
    "distinct": "DISTINCT",
    "qualify": "QUALIFY",
    "windows": "WINDOW",
    "sample": "USING SAMPLE",
    "locks": "FOR UPDATE",
    "into": "INTO",
    "recursive": "WITH RECURSIVE",
    "all": "GROUP BY ALL",
    "by_name": "UNION BY NAME",
    "seed": "REPEATABLE",
    "db": "a schema before a name",
    "rows": "a sample of a number of rows",
    "columns": "a list of column aliases",
}
"""Arguments of nodes as a person would name them."""


def line_of(node: exp.Expr) -> int:
    """The line of the statement where a node stands, as far as the parser noted it."""
    lines = [each.meta["line"] for each in node.walk() if "line" in each.meta]
    return min(lines, default=(node.parent and line_of(node.parent)) or 1)


def refused(node: exp.Expr, line: str) -> ConfigError:
    """The refusal, with its place."""
    return ConfigError(f"{line} (line {line_of(node)})")


def check_nodes(tree: exp.Expr) -> None:
    """ConfigError names the first node, or argument of one, that is not allowed."""
    for node in tree.walk(bfs=False):
        if node.meta.get(HISTOGRAM):
            continue
        allowed = ALLOWED.get(type(node))
        if isinstance(node, exp.Distinct) and isinstance(node.parent, exp.Count):
            allowed = ("expressions",)
        if allowed is None:
            raise refused(node, f"{_named(node)} is not supported")
        for name, value in node.args.items():
            if name not in allowed and value not in (None, False, []):
                raise refused(node, f"{_argument(node, name, value)} is not supported")
        if isinstance(node, tuple(AGGREGATES)) and node.this is None:
            raise refused(node, f"{_called(node)} lacks what it is about; write COUNT(*), or a column")
        if isinstance(node, exp.Func) and any(not node.args.get(each) for each in node.required_args):
            raise refused(node, f"{_called(node)} has too few arguments")
        if isinstance(node, exp.Join) and (node.side or node.kind) not in JOINS:
            raise refused(node, f"{one_line(node.side or node.kind)} JOIN is not supported; INNER JOIN is")
        if isinstance(node, exp.Literal) and not node.is_string and not is_number(node.this):
            raise refused(node, f"'{one_line(node.this)[:40]}' is not a number")
        if isinstance(node, exp.DataType) and node.this not in CAST_TYPES:
            raise refused(node, f"CAST to {one_line(node.sql('duckdb'))[:40]} is not supported")


def check_identifiers(tree: exp.Expr) -> None:
    """ConfigError for names that Winnow adds itself, and for those that it and DuckDB might not tell apart alike."""
    for name in (each for each in tree.find_all(exp.Identifier) if isinstance(each.this, str)):
        if name.this.lower().startswith(OWN_NAMES):
            raise refused(name, f"'{one_line(name.this)[:40]}': names that begin with 'winnow' are Winnow's own")
        if name.this.lower() != "".join(each.lower() if each.isascii() else each for each in name.this):
            raise refused(name, f"'{one_line(name.this)[:40]}': capitals of names are A to Z; write small letters")


def check_texts(tree: exp.Expr) -> None:
    """ConfigError for texts that are joined with themselves again and again, and patterns that take long to match."""
    copies = 1
    for select in tree.find_all(exp.Select):
        joined = [each for each in select.find_all(exp.DPipe, exp.Concat) if each.parent_select is select]
        copies *= 1 + sum(len(each.expressions) or 1 for each in joined)
        if copies > MAX_TEXTS:
            raise refused(select, f"|| and CONCAT could make one text of more than {MAX_TEXTS:,}; join fewer")
    for like in tree.find_all(exp.Like, exp.ILike):
        if sum(each.this.count("%") for each in like.expression.find_all(exp.Literal)) > MAX_PERCENTS:
            raise refused(like, f"a pattern of LIKE has more than {MAX_PERCENTS} times %; write a shorter one")


def _named(node: exp.Expr) -> str:
    if isinstance(node, exp.Window):
        return f"{_called(node.this)} OVER …"
    if isinstance(node, exp.Anonymous | exp.Func):
        return _called(node)
    if isinstance(node, exp.Distinct):
        return "DISTINCT" if isinstance(node.parent, exp.Select) else f"{_called(node.parent)[:-2]}(DISTINCT …)"
    if isinstance(node, exp.Command):
        return one_line(node.this)[:40].upper()
    return type(node).__name__.upper()


def _called(node: object) -> str:
    if isinstance(node, exp.Anonymous):
        return f"{one_line(node.this)[:40].upper()}()"
    return f"{node.sql_name()}()" if isinstance(node, exp.Func) else type(node).__name__.upper()


def _argument(node: exp.Expr, name: str, value: object) -> str:
    if name == "joins":
        return "a join in parentheses"
    if name == "method":
        return f"{one_line(value)} JOIN"
    if name == "distinct":
        return "UNION without ALL" if isinstance(node, exp.Union) else "SELECT DISTINCT"
    if isinstance(value, exp.Window | exp.Subquery):
        return _named(value)
    return SPOKEN.get(name, f"{name.rstrip('_').upper()} of {type(node).__name__.upper()}")
