"""What is known of a column or an expression before any row is seen: its level, its type, its range, its values."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import TypeAlias

from sqlglot import exp

from winnow.analytics.sql.argument_terms import CONSTANT, Terms, column_terms, joined_terms
from winnow.analytics.tables.declaration import LEVELS, ColumnDeclaration, ColumnType, Level

LARGEST_WHOLE = float(1 << 53)
"""Up to here floating point holds every whole number."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """An expression. Dates have their range in days since 1970; NULL alone has an empty range and no values."""

    level: Level = "public"
    type: ColumnType | None = None
    duckdb_type: str = ""
    """DuckDB's own type; empty for what has the one of a column of this type, or an unknown one."""
    low: float = -inf
    high: float = inf
    values: tuple[str | int | float | bool, ...] | None = None
    """All that it can be besides NULL, where that is known."""
    conditional: bool = False
    """Whether it chooses which rows count: by CASE, a boolean, NULLIF and the like."""
    fallible: bool = False
    """Whether it may fail on a row, and then is NULL."""
    columns: frozenset[str] = frozenset()
    """The columns that it is made of."""
    together: str | None = None
    """What its values name, by which rows lie together at an owner."""
    key: bool = False
    """Whether rows of several owners may be matched by it."""
    plain: bool = False
    """Whether it is a column of a table as it is."""
    terms: Terms | None = CONSTANT
    """What it is the sum of (`argument_terms.py`); None if that could be anything."""
    ordered: bool = True
    """Whether its values are those of one column, in their order."""
    marks: tuple[tuple[str, int], ...] = ()
    """Columns of its subquery, with a value of each, that say which rows were chosen to have it."""

    @property
    def bounded(self) -> bool:
        return isfinite(self.low) and isfinite(self.high)

    def of(self, alias: str) -> "Described":
        """With the names of what it is made of as those of one table of a join."""
        terms = (
            None if self.terms is None else frozenset(tuple(f"{alias}.{name}" for name in each) for each in self.terms)
        )
        return replace(self, columns=frozenset(f"{alias}.{name}" for name in self.columns), terms=terms)

    @property
    def chosen(self) -> bool:
        """Whether some rows have it by a condition."""
        return self.conditional or bool(self.marks)

    @property
    def whole(self) -> bool:
        return self.type in ("integer", "boolean") and max(abs(self.low), abs(self.high)) < LARGEST_WHOLE


NOTHING = Described(low=inf, high=-inf, values=())
"""NULL."""
Columns: TypeAlias = Callable[[exp.Column], Described]
"""What a name in the statement stands for; raises if it stands for nothing."""


def described_column(name: str, column: ColumnDeclaration) -> Described:
    low, high = column.bounds or (-inf, inf)
    known = column.known_type
    plain = Described(
        level=column.level,
        type=known,
        columns=frozenset({name}),
        terms=column_terms(name),
        together=column.together,
        key=column.key,
        plain=True,
    )
    if known == "boolean":
        return replace(plain, low=0, high=1, values=(False, True))
    if column.values is not None and known != "text":
        low, high = (pick(float(each) for each in column.values) for pick in (min, max))
    return replace(plain, low=low, high=high, values=column.values)


def strictest(parts: Iterable[Described]) -> Level:
    return max((each.level for each in parts), key=LEVELS.index, default="public")


def made_of(result: Described, parts: Iterable[Described]) -> Described:
    """The result with the level and the columns of what it is made of."""
    parts = list(parts)
    return replace(
        result,
        level=strictest(parts),
        columns=frozenset[str]().union(*(each.columns for each in parts)),
        conditional=result.conditional or any(each.conditional for each in parts),
        fallible=result.fallible or any(each.fallible for each in parts),
        marks=tuple(dict.fromkeys(mark for each in parts for mark in each.marks)),
    )


def either(parts: Iterable[Described]) -> Described:
    """One of several, nobody knows which."""
    parts = list(parts)
    types = {each.type for each in parts if each != NOTHING and each.type is not None}
    known = [each.values for each in parts if each.values is not None]
    values = tuple(dict.fromkeys(value for each in known for value in each))
    kinds = {each.together for each in parts}
    single = types.pop() if len(types) == 1 else ("number" if types == {"integer", "number"} else None)
    return made_of(
        Described(
            type=single,
            low=min((each.low for each in parts), default=-inf),
            high=max((each.high for each in parts), default=inf),
            values=values if len(known) == len(parts) and single is not None else None,
            together=kinds.pop() if len(kinds) == 1 else None,
            key=all(each.key for each in parts),
            terms=joined_terms([each.terms for each in parts]),
            ordered=all(each.ordered for each in parts),
        ),
        parts,
    )
