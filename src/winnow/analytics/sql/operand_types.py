"""Operands that DuckDB converts to one type. It would turn text that it cannot convert into NULL, which no row is equal
to or beyond: the answer would be empty, and nobody would know why. After GROUP BY it would fail, and all has been paid.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.described import Columns, Described
from winnow.analytics.sql.duckdb_engine import TYPES, connection, described_types
from winnow.analytics.tables.declaration import ColumnType
from winnow.core import ConfigError
from winnow.core.untrusted_text import one_line, printable

Operand: TypeAlias = tuple[exp.Expr, Described]

KINDS: Mapping[str, ColumnType] = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"), "integer"),
    **dict.fromkeys(("FLOAT", "DOUBLE", "DECIMAL"), "number"),
    **dict.fromkeys(("DATE", "TIMESTAMP"), "date"),
    "BOOLEAN": "boolean",
    "VARCHAR": "text",
}
COMPARABLE: Mapping[ColumnType, str] = {
    **dict.fromkeys(("number", "integer", "boolean"), "number"),
    "date": "date",
    "text": "text",
}
"""Types with the same word here have an order in common."""
NO_DATE = "is not a date; write one that exists, such as '2024-12-31', or '2024-12-31 18:30:00' with a time"
NO_TRUTH = "is neither true nor false; write TRUE or FALSE"
NUMBER_HINT = "write a number without quotes, such as 20"


def column_type(kind: str) -> ColumnType | None:
    """What DuckDB's type is to Winnow; None for intervals and others that no column has."""
    return KINDS.get(kind.split("(", maxsplit=1)[0])


def check_compared(node: exp.Expr, operands: Sequence[Operand]) -> None:
    """ConfigError for operands that have no order in common: DuckDB would convert one of them row by row, and fail."""
    known = [(each.unnest(), own.type) for each, own in operands if own.type is not None and not _is_text(each)]
    for (_, first), (_, second) in pairwise(known):
        if COMPARABLE[first] == COMPARABLE[second]:
            continue
        numbers = [one_line(each.sql())[:40] for each, _ in known if _is_number(each)]
        if "text" in (first, second) and numbers:
            raise refused(node, f"the statement compares text with the number {numbers[0]}; write '{numbers[0]}'")
        raise refused(node, f"the statement compares {first} with {second}; {_remedy({first, second})}")


def _remedy(types: set[ColumnType]) -> str:
    if types <= {"date", "number", "integer"}:
        return "write a date in quotes, such as '2024-12-31', or take a number of the date, such as YEAR(…)"
    return "convert one of them with TRY_CAST"


def check_is_condition(node: exp.Expr, known: Described) -> None:
    """ConfigError for what is neither true nor false where a condition belongs."""
    if _is_text(node):
        _check_texts(node, [node], "BOOLEAN")
    elif known.type in ("text", "date"):
        raise refused(node, f"{known.type} is no condition; compare it with something, as in column = 'value'")


def check_converted(node: exp.Expr, operands: Sequence[Operand], columns: Columns) -> None:
    """ConfigError for a text among operands of one type that DuckDB cannot convert to it."""
    texts = [each for each, _ in operands if _is_text(each)]
    others = [each for each in operands if not _is_text(each[0]) and not isinstance(each[0].unnest(), exp.Null)]
    if texts and any(known.type != "text" for _, known in others):
        _check_texts(node, texts, _type_of([each for each, _ in others], columns))


def check_cast(node: exp.Cast, columns: Columns) -> None:
    """ConfigError for a text that is nothing of the type that it is converted to; TRY_CAST asks for NULL then."""
    if _is_text(node.this):
        _check_texts(node, [node.this], _type_of([node], columns))


def check_calculated(node: exp.Expr, operands: Sequence[Operand]) -> None:
    """ConfigError for a text in arithmetic with numbers that is none. A text beside a date may be an interval."""
    texts = [each for each, _ in operands if _is_text(each)]
    other = next((known.type for each, known in operands if not _is_text(each)), None)
    if texts and other in ("integer", "number"):
        _check_texts(node, texts, TYPES[other])


def _check_texts(node: exp.Expr, texts: Sequence[exp.Expr], kind: str) -> None:
    """ConfigError if one of these texts is nothing that DuckDB can convert to this type of its own."""
    converted = column_type(kind)
    if converted is None or converted == "text":
        return
    wrong = _not_converted([each.unnest().this for each in texts], kind)
    if not wrong:
        return
    if converted == "date":
        problem = NO_DATE
    elif converted == "boolean":
        problem = NO_TRUTH
    elif _not_converted(wrong[:1], "DOUBLE"):
        problem = f"is not a number; {NUMBER_HINT}"
    else:
        problem = f"does not fit {kind}; {NUMBER_HINT}"
    shown = printable(wrong[0])[:40].replace("\n", " ")  # with blanks around it, which may be what is wrong
    raise refused(node, f"'{shown}' {problem}")


def _is_text(node: exp.Expr) -> bool:
    """Whether it is a text as it is written. DuckDB converts no other to the type of what it is compared with."""
    plain = node.unnest()
    return isinstance(plain, exp.Literal) and plain.is_string


def _is_number(node: exp.Expr) -> bool:
    plain = node.this if isinstance(node, exp.Neg) else node
    return isinstance(plain, exp.Literal) and not plain.is_string


def _type_of(nodes: Sequence[exp.Expr], columns: Columns) -> str:
    """DuckDB's type of what can be any of these; empty where that is not known, or where it accepts no such thing."""
    if any(columns(each).type is None for node in nodes for each in node.find_all(exp.Column)):
        return ""
    if len(nodes) == 1 and isinstance(nodes[0], exp.Column):
        return TYPES[columns(nodes[0]).type or "text"]

    def typed(each: exp.Expr) -> exp.Expr:
        if not isinstance(each, exp.Column):
            return each
        return exp.cast(exp.null(), TYPES[columns(each).type or "text"], dialect="duckdb")

    first, *others = [each.transform(typed) for each in nodes]
    value = exp.Coalesce(this=first, expressions=others) if others else first
    try:
        with connection() as opened:
            return described_types(opened, f"SELECT {value.sql('duckdb')}")[0]
    except ConfigError:  # so is the statement, with its own names
        return ""


def _not_converted(texts: list[str], kind: str) -> list[str]:
    """As DuckDB has it, which knows more ways to write a value than a pattern. All at once: a list may be long."""
    with connection() as opened:
        found = opened.execute(f"SELECT TRY_CAST(UNNEST(?) AS {kind}) IS NULL", [texts]).fetchall()
    return [text for text, (none,) in zip(texts, found, strict=True) if none]
