"""Operands that DuckDB converts to the types that an expression needs. It would turn text that it cannot convert into
NULL, which no row is equal to or beyond: the answer would be empty, and nobody would know why. After GROUP BY it would
fail, and all has been paid.
"""

from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, TypeAlias

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.described import Described
from winnow.analytics.sql.duckdb_engine import TYPES, connection, type_over_nulls
from winnow.analytics.sql.sql_text import shown_text
from winnow.analytics.tables.declaration import ColumnType
from winnow.core import ConfigError
from winnow.core.untrusted_text import one_line, printable

WRITTEN = "written"
"""Of a column of what was opened: the expression that it stands for."""
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
DATE_PART_HINT = "take a number of the date, such as YEAR(…)"
DATE_HINT = f"write a date in quotes, such as '2024-12-31', or {DATE_PART_HINT}"
NUMBER_HINT = "write a number without quotes, such as 20"
LONGEST_CONSTANT = 20
"""In parts; of a longer one only the type is used, or each expression around it would compute it again."""
MOST_SUSPECTS = 4
"""So many different operands are tried with other types, to say which one is wrong."""
WANTED = {
    "DOUBLE": ("a number", NUMBER_HINT),
    "INTEGER": ("a whole number", "write one such as 2"),
    "TIMESTAMP": ("a date", "write DATE '2024-12-31'"),
    "INTERVAL": ("an interval", "write INTERVAL 3 DAY"),
    "VARCHAR": ("text", "write it in quotes"),
    "BOOLEAN": ("a condition", "write TRUE or FALSE"),
}
"""DuckDB's types that an operand may need: in words, and how a constant of it is written."""


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
        return DATE_HINT
    return "convert one of them with TRY_CAST"


def check_is_condition(node: exp.Expr, known: Described) -> None:
    """ConfigError for what is neither true nor false where a condition belongs."""
    if _is_text(node):
        _check_texts(node, [node], "BOOLEAN")
    elif known.type in ("text", "date"):
        raise refused(node, f"{known.type} is no condition; compare it with something, as in column = 'value'")


def check_converted(node: exp.Expr, operands: Sequence[Operand]) -> None:
    """ConfigError for a text among operands of one type that DuckDB cannot convert to it."""
    texts = [each for each, _ in operands if _is_text(each)]
    others = [each for each in operands if not _is_text(each[0]) and not isinstance(each[0].unnest(), exp.Null)]
    if texts and any(known.type != "text" for _, known in others):
        kinds = _kinds(others)
        _check_texts(node, texts, _type_of(kinds, *(_text(each, kinds) for each, _ in others)) or "")


def check_cast(node: exp.Expr, value: exp.Expr, known: Described) -> None:
    """ConfigError for a value that is nothing of the type that it is converted to; TRY_CAST asks for NULL then."""
    kind = "DOUBLE" if isinstance(node, exp.Interval) else _type_with(node, [value], {}, "VARCHAR") or ""
    if _is_text(value) and isinstance(node, exp.Cast):
        _check_texts(node, [value], kind)
    own = known.type if not known.duckdb_type else column_type(known.duckdb_type)
    types = [own, column_type(kind)]
    if types.count("date") == 1 and {None, "text"}.isdisjoint(types):
        raise refused(node, f"the statement converts {types[0]} to {types[1]}; {DATE_HINT}")


def check_divided(node: exp.Expr, divisor: Described) -> None:
    if divisor.low == divisor.high == 0:
        raise refused(node, f"{_shown(node)} divides by 0; write another number")


def computed_type(node: exp.Expr, operands: Sequence[Operand]) -> str:
    """DuckDB's type of an expression, empty where that is not known. ConfigError where it computes it for no row, as
    ROUND(x, 'a') or 1 // 0.
    """
    kinds = _kinds(operands)
    kind = _type_of(kinds, _text(node, kinds)) if operands else ""
    if kind is None and (long := [each for each, _ in operands if id(each) in kinds and not each.find(exp.Column)]):
        varying = {each: own for each, own in kinds.items() if each not in map(id, long)}
        kind = _type_of(varying, _text(node, varying))  # some arguments must be constants
    if kind is None:
        raise _not_computed(node, operands, kinds)
    return kind


def _not_computed(node: exp.Expr, operands: Sequence[Operand], kinds: Mapping[int, str]) -> ConfigError:
    """What is wrong with an expression is what could be replaced to compute it; a column comes last."""
    units = [node.args.get("unit"), *(each for each in node.iter_expressions() if isinstance(each, exp.Var))]
    for unit in (each for each in units if each is not None):
        if _type_of(kinds, _text(node, kinds, {id(unit): exp.var("DAY")})):
            return refused(node, f"{one_line(unit.name)[:40]} is no part of a date; write YEAR, MONTH, DAY or another")
    alike: dict[str, list[Operand]] = {}
    for operand in operands:
        alike.setdefault(operand[0].sql("duckdb"), []).append(operand)
    suspects = sorted(
        alike.values(), key=lambda same: (id(same[0][0]) in kinds, not isinstance(same[0][0], exp.Literal))
    )
    for same in suspects[:MOST_SUSPECTS]:
        each, known = same[0]
        own = kinds.get(id(each)) or _type_of({}, _text(each, {})) or ""
        everywhere = [one for one, _ in same]
        if not _is_text(each) and _type_with(node, everywhere, kinds, own) is not None:
            continue  # it has the right type
        wanted = [kind for kind in WANTED if _type_with(node, everywhere, kinds, kind)]
        if _is_text(each):
            wanted = [kind for kind in wanted if kind != "VARCHAR"]
            wanted.sort(key=lambda kind: bool(_not_converted([each.unnest().this], kind)))
        if wanted:
            return _wanted(node, each, known, wanted[0])
    return refused(node, f"{_shown(node)} cannot be computed; check its arguments")


def _wanted(node: exp.Expr, operand: exp.Expr, known: Described, kind: str) -> ConfigError:
    if _is_text(operand):
        _check_texts(node, [operand], kind)
    words, hint = WANTED[kind]
    shown = _shown(operand.unnest())
    types = {known.type, column_type(kind)}
    if operand.find(exp.Column) and types <= {"date", "number", "integer"}:
        hint = DATE_PART_HINT if known.type == "date" else hint
    elif operand.find(exp.Column) and kind != "INTERVAL":
        hint = f"write TRY_CAST({shown} AS {kind})"
    return refused(node, f"{_shown(node)} needs {words} in place of {shown}; {hint}")


def _shown(node: exp.Expr) -> str:
    """As it was written, where what was opened stands for it."""
    return shown_text(node.copy().transform(lambda each: each.meta.get(WRITTEN, each)))


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


def _kinds(operands: Sequence[Operand]) -> dict[int, str]:
    """DuckDB's types of operands that are no short constants, by their ids; empty where they are not known."""
    varying = [(each, known) for each, known in operands if not _is_constant(each)]
    return {id(each): known.duckdb_type or TYPES.get(known.type or "", "") for each, known in varying}


def _is_constant(node: exp.Expr) -> bool:
    parts = list(islice(node.walk(), LONGEST_CONSTANT + 1))
    return len(parts) <= LONGEST_CONSTANT and not any(isinstance(each, exp.Column) for each in parts)


def _text(node: exp.Expr, kinds: Mapping[int, str], replaced: Mapping[int, exp.Expr] | None = None) -> str:
    """An expression with columns o0, o1 and so on in place of these operands, one for each type."""
    places = {kind: place for place, kind in enumerate(_distinct(kinds))}
    columns = {each: exp.column(f"o{places[kind]}") for each, kind in kinds.items()}
    return _rebuilt(node, {**columns, **(replaced or {})}).sql("duckdb")


def _rebuilt(node: exp.Expr, replaced: Mapping[int, exp.Expr]) -> exp.Expr:
    def part(value: Any) -> Any:
        if isinstance(value, list):
            return [part(each) for each in value]
        return _rebuilt(value, replaced) if isinstance(value, exp.Expr) else value

    return replaced.get(id(node)) or type(node)(**{name: part(value) for name, value in node.args.items()})


def _distinct(kinds: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(kinds.values()))


def _type_with(node: exp.Expr, operands: Sequence[exp.Expr], kinds: Mapping[int, str], kind: str) -> str | None:
    """DuckDB's type of an expression if these of its operands had this one."""
    changed = {**kinds, **dict.fromkeys(map(id, operands), kind)}
    return _type_of(changed, _text(node, changed))


def _type_of(kinds: Mapping[int, str], *texts: str) -> str | None:
    """DuckDB's type of what can be any of these; None if it computes none, empty if a type is not known."""
    if not all(kinds.values()):
        return ""
    return type_over_nulls(f"COALESCE({', '.join(texts)})" if texts[1:] else texts[0], _distinct(kinds))


def _not_converted(texts: list[str], kind: str) -> list[str]:
    """As DuckDB has it, which knows more ways to write a value than a pattern. All at once: a list may be long."""
    with connection() as opened:
        found = opened.execute(f"SELECT TRY_CAST(UNNEST(?) AS {kind}) IS NULL", [texts]).fetchall()
    return [text for text, (none,) in zip(texts, found, strict=True) if none]
