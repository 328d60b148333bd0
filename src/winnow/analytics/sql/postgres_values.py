"""Values of a statement in PostgreSQL's words: literals, dates, text and arithmetic that cannot fail."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf, isfinite
from typing import TypeAlias

from sqlglot import exp

from winnow.analytics.sql.describe_expression import DATE_PARTS
from winnow.analytics.tables.declaration import ColumnType

PARTS = {
    **{each: each for each in ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "DOW", "ISODOW", "DOY")},
    "DAYOFWEEK": "DOW",
    "DAYOFWEEKISO": "ISODOW",
    "DAYOFYEAR": "DOY",
}
"""Of dates: DuckDB's name, and PostgreSQL's."""
UNITS = ("YEAR", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE")
MOMENT = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d)?")
MAX_INTERVAL = 10_000
LARGEST = {"integer": 2.0**62, "number": 1e300}
"""Results beyond might not fit PostgreSQL's type."""
MAX_DIGITS = 15
"""Decimals of so many digits are the same floating-point number in both."""


@dataclass(frozen=True, kw_only=True)
class Translated:
    """PostgreSQL's text of an expression, its type and its range."""

    sql: str
    kind: ColumnType
    low: float = -inf
    high: float = inf
    decimal: bool = False
    """Whether it is a literal such as 0.05, which takes the type of what it stands beside."""
    text: str | None = None
    """Of a literal in quotes."""


Translate: TypeAlias = Callable[[exp.Expr], Translated]


class NotTranslatedError(Exception):
    """DuckDB has to evaluate it."""


def quoted_text(text: str) -> str:
    if "\0" in text:
        raise NotTranslatedError
    return "'" + text.replace("'", "''") + "'"


def whole_text(number: int) -> str:
    return f"CAST({number} AS bigint)"


def float_text(number: float) -> str:
    return f"CAST('{number!r}' AS float8)"


def moment(text: str | None) -> Translated:
    """A date in a literal."""
    try:
        if text is None or not MOMENT.fullmatch(text):
            raise NotTranslatedError
        datetime.fromisoformat(text)
    except ValueError:
        raise NotTranslatedError from None
    return Translated(sql=f"CAST('{text}' AS timestamp)", kind="date")


def alike(parts: Sequence[Translated]) -> list[Translated]:
    """With one type, as DuckDB finds it: whole numbers become floating-point beside such, text beside dates a date."""
    kinds = {each.kind for each in parts}
    if kinds == {"date", "text"}:
        return [each if each.kind == "date" else moment(each.text) for each in parts]
    if kinds <= {"integer", "number"}:
        floats = any(each.kind == "number" and not each.decimal for each in parts)
        return [_float(each) for each in parts] if floats else list(parts)
    if len(kinds) != 1:
        raise NotTranslatedError
    return list(parts)


def _float(part: Translated) -> Translated:
    sql = part.sql if part.kind == "number" and not part.decimal else f"CAST({part.sql} AS float8)"
    return replace(part, sql=sql, kind="number", decimal=False)


def texts(nodes: Sequence[exp.Expr], translate: Translate) -> list[str]:
    parts = [translate(each) for each in nodes]
    if any(each.kind != "text" for each in parts):
        raise NotTranslatedError
    return [each.sql for each in parts]


def _literal(node: exp.Expr, translate: Translate) -> Translated:
    text = str(node.this)
    if node.args["is_string"]:
        return Translated(sql=f'({quoted_text(text)} COLLATE "C")', kind="text", text=text)
    if re.fullmatch(r"\d{1,18}", text):
        return Translated(sql=whole_text(int(text)), kind="integer", low=int(text), high=int(text))
    if not re.fullmatch(r"\d*\.\d+", text) or len(text) > MAX_DIGITS:
        raise NotTranslatedError
    value = float(text)
    return Translated(sql=f"CAST('{text}' AS numeric)", kind="number", low=value, high=value, decimal=True)


def _cast(node: exp.Expr, translate: Translate) -> Translated:
    """DATE '2020-01-01' alone."""
    inner, kind = node.this, node.args["to"].this
    if not isinstance(inner, exp.Literal) or not inner.is_string:
        raise NotTranslatedError
    if kind not in (exp.DType.DATE, exp.DType.TIMESTAMP, exp.DType.TIMESTAMPNTZ):
        raise NotTranslatedError
    if kind == exp.DType.DATE and " " in inner.this:
        raise NotTranslatedError
    return moment(inner.this)


def _shifted(node: exp.Expr, translate: Translate) -> Translated:
    """A date in a literal plus or minus an interval in one."""
    count, unit = node.expression.this, node.expression.args.get("unit")
    if not isinstance(node.this, exp.Cast) or not isinstance(count, exp.Literal) or unit is None:
        raise NotTranslatedError
    name = unit.name.upper()
    if not re.fullmatch(r"\d{1,5}", str(count.this)) or int(count.this) > MAX_INTERVAL or name not in UNITS:
        raise NotTranslatedError
    sign, first = "+" if isinstance(node, exp.Add) else "-", translate(node.this)
    return replace(first, sql=f"({first.sql} {sign} INTERVAL '{int(count.this)} {name}')")


def _arithmetic(node: exp.Expr, translate: Translate) -> Translated:
    if isinstance(node.expression, exp.Interval):
        return _shifted(node, translate)
    one, other = alike([translate(node.this), translate(node.expression)])
    if one.decimal or other.decimal:
        raise NotTranslatedError
    if isinstance(node, exp.Add):
        sign, low, high = "+", one.low + other.low, one.high + other.high
    elif isinstance(node, exp.Sub):
        sign, low, high = "-", one.low - other.high, one.high - other.low
    else:
        corners = [a * b for a in (one.low, one.high) for b in (other.low, other.high)]
        sign, low, high = "*", min(corners), max(corners)
        if one.kind != "integer":  # PostgreSQL fails where a product of floating-point numbers is too small for one
            raise NotTranslatedError
    return _within(Translated(sql=f"({one.sql} {sign} {other.sql})", kind=one.kind, low=low, high=high))


def _within(found: Translated) -> Translated:
    limit = LARGEST.get(found.kind)
    if limit is None or not (isfinite(found.low) and isfinite(found.high) and max(-found.low, found.high) < limit):
        raise NotTranslatedError
    return found


def _modulo(node: exp.Expr, translate: Translate) -> Translated:
    one, other = translate(node.this), translate(node.expression)
    if (one.kind, other.kind) != ("integer", "integer") or other.low != other.high or other.low == 0:
        raise NotTranslatedError
    size = abs(other.low)
    return Translated(sql=f"({one.sql} % {other.sql})", kind="integer", low=-size, high=size)


def _negated(node: exp.Expr, translate: Translate) -> Translated:
    part = _within(translate(node.this))
    return replace(part, sql=f"(- {part.sql})", low=-part.high, high=-part.low)


def _absolute(node: exp.Expr, translate: Translate) -> Translated:
    part = _within(translate(node.this))
    return replace(part, sql=f"abs({part.sql})", low=0.0, high=max(abs(part.low), abs(part.high)))


def _length(node: exp.Expr, translate: Translate) -> Translated:
    (text,) = texts([node.this], translate)
    return Translated(sql=f"CAST(char_length({text}) AS bigint)", kind="integer", low=0, high=2.0**31)


def _trim(node: exp.Expr, translate: Translate) -> Translated:
    (text,) = texts([node.this], translate)
    return Translated(sql=f"btrim({text})", kind="text")


def _joined(node: exp.Expr, translate: Translate) -> Translated:
    one, other = texts([node.this, node.expression], translate)
    return Translated(sql=f"({one} || {other})", kind="text")


def _part(node: exp.Expr, translate: Translate) -> Translated:
    name = node.this.name.upper() if isinstance(node, exp.Extract) else type(node).__name__.upper()
    when = translate(node.expression if isinstance(node, exp.Extract) else node.this)
    if name not in PARTS or when.kind != "date":
        raise NotTranslatedError
    low, high = DATE_PARTS.get(name, (-1e6, 1e6))
    sql = f"CAST(EXTRACT({PARTS[name]} FROM {when.sql}) AS bigint)"
    return Translated(sql=sql, kind="integer", low=low, high=high)


def _truncated(node: exp.Expr, translate: Translate) -> Translated:
    when, unit = translate(node.this), node.args["unit"].name.upper()
    if when.kind != "date" or unit not in (*UNITS, "QUARTER"):
        raise NotTranslatedError
    return Translated(sql=f"date_trunc('{unit}', {when.sql})", kind="date")


def _first_of(node: exp.Expr, translate: Translate) -> Translated:
    parts = alike([translate(each) for each in (node.this, *node.expressions)])
    if any(each.decimal for each in parts):
        raise NotTranslatedError
    low, high = min(each.low for each in parts), max(each.high for each in parts)
    sql = f"{type(node).__name__.upper()}({', '.join(each.sql for each in parts)})"
    return Translated(sql=sql, kind=parts[0].kind, low=low, high=high)


VALUES: Mapping[type[exp.Expr], Callable[[exp.Expr, Translate], Translated]] = {
    exp.Literal: _literal,
    exp.Cast: _cast,
    **dict.fromkeys((exp.Add, exp.Sub, exp.Mul), _arithmetic),
    exp.Mod: _modulo,
    exp.Neg: _negated,
    exp.Abs: _absolute,
    exp.Length: _length,
    exp.Trim: _trim,
    exp.DPipe: _joined,
    **dict.fromkeys((exp.Extract, exp.Year, exp.Quarter, exp.Month, exp.Week, exp.Day, exp.Hour, exp.Minute), _part),
    **dict.fromkeys((exp.DayOfWeek, exp.DayOfWeekIso, exp.DayOfYear), _part),
    **dict.fromkeys((exp.TimestampTrunc, exp.DateTrunc), _truncated),
    **dict.fromkeys((exp.Coalesce, exp.Greatest, exp.Least), _first_of),
}
