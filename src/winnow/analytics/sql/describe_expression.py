"""Describes an expression bottom up: levels by the strictest part, ranges by interval arithmetic."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from math import ceil, floor, inf, isfinite, log, nan, sqrt
from math import exp as power_of_e
from typing import TypeAlias

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import AGGREGATES, refused
from winnow.analytics.sql.argument_terms import CONSTANT, function_of, keeps_order, terms_of
from winnow.analytics.sql.described import NOTHING, Columns, Described, either, made_of
from winnow.analytics.sql.operand_types import (
    Operand,
    check_cast,
    check_compared,
    check_converted,
    check_divided,
    check_is_condition,
    computed_type,
)
from winnow.analytics.sql.spatial_functions import PLACES, is_spatial
from winnow.analytics.tables.declaration import ColumnType
from winnow.core.untrusted_text import one_line

Range: TypeAlias = tuple[float, float]

CONDITIONS = (exp.And, exp.Or, exp.Not, exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.StartsWith, exp.Contains)
COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ)
COMPARED = (*COMPARISONS, exp.Between, exp.In, exp.Is, exp.Nullif)
"""Whose operands are compared with each other."""
TEXTS = (exp.Lower, exp.Upper, exp.Trim, exp.Substring, exp.Concat, exp.DPipe)
DATE_PARTS: Mapping[str, Range] = {
    "QUARTER": (1, 4),
    "MONTH": (1, 12),
    "WEEK": (1, 53),
    "DAY": (1, 31),
    "HOUR": (0, 23),
    "MINUTE": (0, 59),
    "DAYOFWEEK": (0, 6),
    "DAYOFWEEKISO": (1, 7),
    "DOW": (0, 6),
    "ISODOW": (1, 7),
    "DAYOFYEAR": (1, 366),
    "DOY": (1, 366),
}
MAX_LISTED = 400
"""Parts of dates that can be so many whole numbers are one of them: groups need no further list."""
CAST_KINDS: Mapping[exp.DType, ColumnType] = {
    **dict.fromkeys((exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT), "integer"),
    **dict.fromkeys((exp.DType.FLOAT, exp.DType.DOUBLE, exp.DType.DECIMAL), "number"),
    **dict.fromkeys((exp.DType.TEXT, exp.DType.VARCHAR), "text"),
    **dict.fromkeys((exp.DType.DATE, exp.DType.TIMESTAMP, exp.DType.TIMESTAMPNTZ), "date"),
    exp.DType.BOOLEAN: "boolean",
}
WIDE_TYPES = (exp.DType.BIGINT, exp.DType.DOUBLE)
"""A cast to another type may fail, and then is NULL."""
NUMBERS = ("number", "integer", "boolean", None)
MOST_DIGITS = float(1 << 30)
"""By how much a sum may be larger than the range of what is added: floating point has 2**53, and so loses nothing."""
LEAST_NORMAL = 1e-250


def describe_expression(node: exp.Expr, columns: Columns) -> Described:
    """ConfigError if it has something that does not belong into an expression of rows."""
    if isinstance(node, exp.Column):
        return columns(node)
    refuse_subqueries(node)
    if isinstance(node, exp.Subquery | exp.Select | exp.Star | exp.Alias):
        what = "SELECT within an expression" if isinstance(node, exp.Subquery | exp.Select) else "*"
        raise refused(node, f"{what} is not supported here")
    if isinstance(node, tuple(AGGREGATES)):
        raise refused(node, _misplaced_aggregate(node))
    operands = _operands(node)
    parts = [describe_expression(each, columns) for each in operands]
    described_operands = list(zip(operands, parts, strict=True))
    _check_operands(node, described_operands)
    kind = computed_type(node, described_operands)
    described = replace(made_of(_result(node, parts), parts), duckdb_type=kind)
    if isinstance(node, CONDITIONS + COMPARISONS):
        return described
    values = described_operands[_first_value(node) :]
    if is_distance(node, columns):  # of several columns, but it is one quantity
        return replace(
            described, terms=frozenset({(node.sql(),) * 2}) if described.columns else CONSTANT, ordered=False
        )
    rounds = _rounds(node, described, parts)
    return replace(
        described,
        terms=(function_of if rounds else partial(terms_of, node))([each.terms for _, each in values]),
        ordered=keeps_order(node, [(text.sql(), each.ordered) for text, each in values if each.terms != CONSTANT]),
    )


def describe_condition(node: exp.Expr, columns: Columns) -> Described:
    """Of WHERE, ON, FILTER or HAVING; ConfigError for what is neither true nor false, too."""
    described = describe_expression(node, columns)
    check_is_condition(node, described)
    return described


def is_distance(node: exp.Expr, columns: Columns) -> bool:
    """Whether it is the distance of two places, whose coordinates are columns of tables as they are, or numbers. Made
    of anything else, a distance could be any function of several columns.
    """
    places = is_spatial(node) and bool(node.meta.get(PLACES))
    return places and all(columns(each).plain for each in node.find_all(exp.Column))


def _rounds(node: exp.Expr, result: Described, parts: list[Described]) -> bool:
    """Whether it makes steps of a number: a narrower type does, and so does a far larger number that is added and taken
    off again, or one so small that few digits are left of it.
    """
    if isinstance(node, exp.Cast | exp.TryCast):
        to = node.args["to"].this
        return to != exp.DType.DOUBLE and not (parts[0].type == "integer" and CAST_KINDS[to] == "integer")
    largest = max(abs(result.low), abs(result.high))
    if isinstance(node, exp.Add | exp.Sub):
        widths = (each.high - each.low for each in parts if each.terms != CONSTANT)
        narrowest = min((each for each in widths if each > 0), default=inf)
        return largest > narrowest * MOST_DIGITS
    return isinstance(node, exp.Mul | exp.Div) and 0 < largest < LEAST_NORMAL


def _first_value(node: exp.Expr) -> int:
    """Which operand is the first that can be the value of a choice; what is before it are conditions."""
    if isinstance(node, exp.Case):
        return len(node.args["ifs"]) + (node.this is not None)
    return int(isinstance(node, exp.If))


def _check_operands(node: exp.Expr, operands: list[Operand]) -> None:
    """ConfigError for operands that DuckDB converts to one type, and cannot."""
    if isinstance(node, COMPARED):
        check_compared(node, operands)
    if isinstance(node, (*COMPARED, exp.Coalesce, exp.Greatest, exp.Least, exp.DateDiff)):
        check_converted(node, operands)
    if isinstance(node, exp.Case | exp.If):
        first = _first_value(node)
        check_converted(node, operands[first:])
        if isinstance(node, exp.Case) and node.this is not None:  # which is compared with what stands after WHEN
            check_compared(node, operands[:first])
            check_converted(node, operands[:first])
        else:
            _check_is_conditions(operands[:first])
    if isinstance(node, exp.And | exp.Or | exp.Not):
        _check_is_conditions(operands)
    if isinstance(node, exp.Cast | exp.Interval) and not isinstance(node, exp.TryCast):
        check_cast(node, *operands[0])
    if isinstance(node, exp.IntDiv | exp.Mod):
        check_divided(node, operands[1][1])


def _check_is_conditions(operands: list[Operand]) -> None:
    for each, known in operands:
        check_is_condition(each, known)


def refuse_subqueries(node: exp.Expr) -> None:
    """Conditions have a place of their own for EXISTS and IN (SELECT …)."""
    for each in node.find_all(exp.Exists, exp.In):
        if isinstance(each, exp.Exists) or each.args.get("query"):
            raise refused(each, "EXISTS and IN (SELECT …) are supported in WHERE alone")


def _operands(node: exp.Expr) -> list[exp.Expr]:
    """The parts that hold values; CASE lists its conditions first."""
    if isinstance(node, exp.Case):
        conditions = [each.this for each in node.args["ifs"]]
        branches = [each.args["true"] for each in node.args["ifs"]]
        head = [node.this] if node.this is not None else []
        return [*head, *conditions, *branches, *([node.args["default"]] if node.args.get("default") else [])]
    return [each for each in node.iter_expressions() if not isinstance(each, exp.DataType | exp.Var | exp.Identifier)]


def _result(node: exp.Expr, parts: list[Described]) -> Described:
    match node:
        case exp.Literal():
            return _literal(node)
        case exp.Boolean():
            return Described(type="boolean", low=0, high=1, values=(bool(node.this),))
        case exp.Null():
            return NOTHING
        case exp.Paren():
            return parts[0]
        case exp.Case():
            branches = len(node.args["ifs"]) + bool(node.args.get("default"))
            chosen = parts[-branches:] + ([] if node.args.get("default") else [NOTHING])
            return _conditional(either(chosen))
        case exp.If():
            return _conditional(either(parts[1:]))
        case exp.Coalesce():
            return _conditional(either(parts))
        case exp.Nullif():
            return _conditional(parts[0])
        case exp.Cast() | exp.TryCast():
            return _cast(node, parts[0])
    if isinstance(node, CONDITIONS + COMPARISONS):
        return Described(type="boolean", low=0, high=1, values=(False, True), conditional=True)
    if isinstance(node, TEXTS):
        return Described(type="text")
    return _number(node, parts)


def _number(node: exp.Expr, parts: list[Described]) -> Described:
    part = _date_part(node)
    if part and parts and parts[0].type != "date":  # the days of an interval may be thousands
        return Described(type="integer", fallible=True)
    if part:
        years = (_year(parts[0].low), _year(parts[0].high)) if parts else (-inf, inf)
        low, high = DATE_PARTS.get(part, years if part == "YEAR" else (-inf, inf))
        few = isfinite(low) and isfinite(high) and high - low < MAX_LISTED
        return Described(
            type="integer", low=low, high=high, values=tuple(range(int(low), int(high) + 1)) if few else None
        )
    if isinstance(node, exp.TimestampTrunc | exp.DateTrunc):
        return Described(type="date")
    if isinstance(node, exp.DateDiff):
        return Described(type="integer")
    if isinstance(node, exp.Add | exp.Sub) and any(each.type == "date" or each.type is None for each in parts):
        dates = sum(each.type == "date" for each in parts)  # less a date, a date is none
        return Described(type="date" if dates == 1 else None, fallible=True)
    if any(each.type not in NUMBERS for each in parts):
        return Described()
    square = isinstance(node, exp.Mul) and node.this == node.expression
    low, high = _square((parts[0].low, parts[0].high)) if square else _interval(node, [(p.low, p.high) for p in parts])
    defined = not isinstance(node, exp.Asin) or -1 <= parts[0].low <= parts[0].high <= 1
    may_fail = not (defined and isfinite(low) and isfinite(high))  # and then is NULL
    whole = isinstance(node, exp.Floor | exp.Ceil | exp.Sign | exp.Length) or (
        isinstance(node, exp.Round) and len(parts) == 1
    )
    kept = isinstance(
        node, exp.Neg | exp.Add | exp.Sub | exp.Mul | exp.Abs | exp.Mod | exp.IntDiv | exp.Greatest | exp.Least
    ) and all(each.type in ("integer", "boolean") for each in parts)
    return Described(type="integer" if whole or kept else "number", low=low, high=high, fallible=may_fail)


def _interval(node: exp.Expr, parts: list[Range]) -> Range:  # noqa: PLR0912 - a table of cases
    match node:
        case exp.Neg():
            found = (-parts[0][1], -parts[0][0])
        case exp.Add():
            found = (parts[0][0] + parts[1][0], parts[0][1] + parts[1][1])
        case exp.Sub():
            found = (parts[0][0] - parts[1][1], parts[0][1] - parts[1][0])
        case exp.Mul():
            found = _corners(parts, lambda a, b: a * b)
        case exp.Div() | exp.IntDiv() if not parts[1][0] <= 0 <= parts[1][1]:
            found = _corners(parts, lambda a, b: a / b)
            if isinstance(node, exp.IntDiv):
                found = (floor(found[0]), ceil(found[1])) if all(map(isfinite, found)) else found
        case exp.Mod() if parts[1][0] == parts[1][1] != 0:
            size = abs(parts[1][0])
            found = (0 if parts[0][0] >= 0 else -size, size)
        case exp.Abs():
            low, high = parts[0]
            found = (0 if low <= 0 <= high else min(abs(low), abs(high)), max(abs(low), abs(high)))
        case exp.Round() if len(parts) == 2:
            step = 10.0 ** min(-parts[1][0], 300)  # ROUND(x, -3) is a multiple of 1,000
            found = (parts[0][0] - max(step, 1), parts[0][1] + max(step, 1))
        case exp.Floor() | exp.Ceil() | exp.Round():
            found = (parts[0][0] - 1, parts[0][1] + 1)
        case exp.Greatest():
            found = (min(each[0] for each in parts), max(each[1] for each in parts))  # NULLs are passed over
        case exp.Least():
            found = (min(each[0] for each in parts), max(each[1] for each in parts))
        case exp.Sqrt() if parts[0][0] >= 0:
            found = (sqrt(parts[0][0]), sqrt(parts[0][1]))
        case exp.Ln() if parts[0][0] > 0:
            found = (log(parts[0][0]), log(parts[0][1]))
        case exp.Exp() if parts[0][1] < 700:
            found = (power_of_e(parts[0][0]), power_of_e(parts[0][1]))
        case exp.Pow() if parts[1] == (2, 2):
            found = _square(parts[0])
        case exp.Sign() | exp.Sin() | exp.Cos():
            found = (-1, 1)
        case exp.Asin():
            found = (-2, 2)
        case exp.Radians():
            found = (parts[0][0] / 57.29, parts[0][1] / 57.29)
            found = (min(found[0], -found[0] / 1e3), max(found[1], -found[1] / 1e3))
        case _:
            found = (-inf, inf)
    return found if found[0] <= found[1] else (-inf, inf)


def _square(part: Range) -> Range:
    low, high = _interval(exp.Abs(), [part])
    return low * low, high * high


def _corners(parts: list[Range], operation: Callable[[float, float], float]) -> Range:
    (a, b), (c, d) = parts
    if not all(map(isfinite, (a, b, c, d))):
        return (-inf, inf)
    found = [operation(x, y) for x in (a, b) for y in (c, d)]
    return min(found), max(found)


def _literal(node: exp.Literal) -> Described:
    if node.is_string:
        return Described(type="text", values=(str(node.this),))
    try:
        number = float(node.this)
    except ValueError:
        number = nan
    if not isfinite(number):
        raise refused(node, f"the number {one_line(node.this)[:40]} is too large")
    if node.is_int and abs(number) < 1 << 53:
        return Described(type="integer", low=number, high=number, values=(int(node.this),))
    return Described(type="number", low=number, high=number, values=(number,))


def _conditional(chosen: Described) -> Described:
    """Rows of several owners are not matched by it, and do not lie together by it."""
    return replace(chosen, conditional=True, key=False, together=None, plain=False)


def _cast(node: exp.Expr, inner: Described) -> Described:
    kind = CAST_KINDS[node.args["to"].this]
    if kind == inner.type:
        narrow = kind in ("number", "integer") and node.args["to"].this not in WIDE_TYPES
        return replace(inner, fallible=True) if narrow else inner
    if kind == "boolean":
        return Described(type="boolean", low=0, high=1, values=(False, True), conditional=True, fallible=True)
    if kind in ("number", "integer") and inner.type in ("number", "integer", "boolean"):
        slack, fits = float(kind == "integer"), node.args["to"].this in WIDE_TYPES and inner.bounded
        return Described(type=kind, low=inner.low - slack, high=inner.high + slack, fallible=not fits)
    if kind == "date" and inner.type == "date":
        return replace(inner, low=floor(inner.low)) if inner.bounded else inner
    return Described(type=kind, fallible=kind != "text")


def _date_part(node: exp.Expr) -> str:
    if isinstance(node, exp.Extract):
        return str(node.this.name).upper()
    name = type(node).__name__.upper()
    return name if name in DATE_PARTS or name == "YEAR" else ""


def _year(days: float) -> float:
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=days)).year
    except (OverflowError, ValueError):
        return days * inf


def _misplaced_aggregate(node: exp.Expr) -> str:
    parent = node.parent
    while parent is not None and not isinstance(parent, exp.Where | exp.Group | exp.Subquery | exp.CTE):
        if isinstance(parent, tuple(AGGREGATES)):
            return "aggregate function calls cannot be nested"
        parent = parent.parent
    place = "WHERE" if isinstance(parent, exp.Where) else "GROUP BY" if isinstance(parent, exp.Group) else "a subquery"
    return f"an aggregate within {place} is not supported"
