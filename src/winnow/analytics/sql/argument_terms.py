"""Which numbers of rows may be summed or searched for.

SUM(FLOOR(age / 110) * cost) is the cost of the one person who is 110 years old, and MAX(age * 100000 + cost) is a row.
So an expression is kept as its terms, each the names of the columns that it multiplies. A name that stands twice in a
term stands for any function of that column. A sum is told if each of its terms multiplies different columns, each as
it is, or is a function of one column alone; the least or the greatest is told of one column, in its own order.
Conditions (CASE, FILTER) are no terms: the rows that they choose are counted instead (`row_partition.py`).
"""

from collections.abc import Sequence
from itertools import chain
from typing import TypeAlias

from sqlglot import exp

Terms: TypeAlias = frozenset[tuple[str, ...]]
CONSTANT: Terms = frozenset({()})
MAX_TERMS = 200
"""An expression with more is taken for one that tells rows apart."""

AS_IT_IS = (exp.Paren, exp.Neg, exp.Abs, exp.Cast, exp.TryCast)
"""Nodes that keep terms; casts that round are functions, and ABS chooses rows by sign, a condition."""
VALUE_CHOICES = (exp.Case, exp.If, exp.Coalesce, exp.Nullif, exp.Greatest, exp.Least)
"""Whose value is that of one of their operands."""
RISING = (
    exp.Paren,
    exp.Neg,
    exp.Cast,
    exp.TryCast,
    exp.Floor,
    exp.Ceil,
    exp.Round,
    exp.Sqrt,
    exp.Ln,
    exp.Exp,
    exp.Radians,
    exp.Extract,
    exp.Year,
    exp.Month,
    exp.Day,
    exp.TimestampTrunc,
    exp.DateTrunc,
    exp.DateDiff,
    exp.Add,
    exp.Sub,
    exp.Mul,
    exp.Div,
    exp.IntDiv,
)
"""With one operand that is no constant, these keep the order of values or turn it round; so do dates' parts within
each year, and they are few."""


def column_terms(name: str) -> Terms:
    return frozenset({(name,)})


def joined_terms(parts: Sequence[Terms | None]) -> Terms | None:
    """Of a sum, or of one of several."""
    known = [each for each in parts if each is not None]
    found = frozenset[tuple[str, ...]]().union(*known)
    return found if len(known) == len(parts) and len(found) <= MAX_TERMS else None


def product(one: Terms | None, other: Terms | None) -> Terms | None:
    if one is None or other is None or len(one) * len(other) > MAX_TERMS:
        return None
    return frozenset(_multiplied(first, second) for first in one for second in other)


def function_of(parts: Sequence[Terms | None]) -> Terms | None:
    """Of any function: of one column it is a term, of several it could be anything."""
    joined = joined_terms(parts)
    if joined is None:
        return None
    names = sorted({*chain.from_iterable(joined)})
    return None if len(names) > 1 else frozenset({tuple(names * 2)})


def may_be_summed(terms: Terms | None) -> bool:
    return terms is not None and all(len({*each}) in (len(each), 1) for each in terms)


def terms_of(node: exp.Expr, parts: Sequence[Terms | None]) -> Terms | None:
    """Of an expression whose operands, or of a choice those that can be its value, have the terms `parts`."""
    match node:
        case exp.Add() | exp.Sub():
            return joined_terms(parts)
        case exp.DateDiff():  # that of two functions
            return joined_terms([function_of([each]) for each in parts])
        case exp.Mul():
            return product(*parts)
        case exp.Pow() if parts[1] == CONSTANT:  # of 2: others have no known bounds
            return product(parts[0], parts[0])
        case exp.Div() if parts[1] == CONSTANT:
            return parts[0]
    if isinstance(node, AS_IT_IS):
        return parts[0]
    return joined_terms(parts) if isinstance(node, VALUE_CHOICES) else function_of(parts)


def keeps_order(node: exp.Expr, varying: Sequence[tuple[str, bool]]) -> bool:
    """Whether the least of this is the least, or the greatest, of one column. `varying` are those operands that are no
    constants: their text, and whether that is so of them.
    """
    different = set(varying) if isinstance(node, VALUE_CHOICES) else list(varying)
    if not different:
        return True
    return (
        isinstance(node, (*VALUE_CHOICES, *RISING)) and len(different) == 1 and all(ordered for _, ordered in different)
    )


def _multiplied(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    both = (*one, *other)
    return tuple(name for name in sorted({*both}) for _ in range(min(both.count(name), 2)))
