"""The design matrix of a formula over a table: the same columns at every owner, whatever its rows hold.

Numbers are brought to [-1, 1] by their declared bounds, which keeps sums small and equations well conditioned;
`original_units` takes coefficients back. Categories become a 0/1 column for each level but the first (treatment
coding); without an intercept the first category has one for every level. Rows with a missing cell, or a value that is
not listed, are left out.
"""

from dataclasses import dataclass, field
from functools import cached_property
from math import log

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.fit.formula import Factor, Formula
from winnow.analytics.tables.declaration import ColumnDeclaration, TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import ConfigError

INTERCEPT = "Intercept"
POOLED = "other"
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class DesignNumber:
    """(value - centre)/half, from the declared bounds; the logarithm of the value where asked."""

    factor: Factor
    centre: float
    half: float

    names = ("",)

    def values(self, table: OwnerTable) -> Matrix:
        numbers = table.numbers(self.factor.column)
        if self.factor.use == "log":
            numbers = np.log(numbers)
        return ((numbers - self.centre) / self.half)[:, None]


@dataclass(frozen=True)
class DesignCategory:
    """A 0/1 column for each group of levels after the reference, the first; for all of them where there is none.

    `groups` says which levels count as one.
    """

    factor: Factor
    groups: tuple[tuple[int, ...], ...]
    labels: tuple[str, ...]
    reference: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"[{label}]" for label in self.labels[self.reference :])

    def values(self, table: OwnerTable) -> Matrix:
        codes = table.codes(self.factor.column)
        columns = np.stack([np.isin(codes, group) for group in self.groups[self.reference :]], axis=1).astype(
            np.float64
        )
        return np.where(codes[:, None] < 0, np.nan, columns)


DesignFactor = DesignNumber | DesignCategory


@dataclass(frozen=True)
class DesignColumn:
    """A column of the matrix: which of its term's products it is, and how it was scaled."""

    name: str
    term: int
    product: tuple[int, ...]
    """The place of each factor's column; of categories, counted from the first level after the reference."""
    half: float
    centre: float


@dataclass(frozen=True)
class Design:
    """The columns of a formula's terms. `dropped` products of categories have too few rows."""

    formula: Formula
    factors: tuple[tuple[DesignFactor, ...], ...]
    """Of each term, those of its factors."""
    dropped: frozenset[str] = field(default_factory=frozenset)

    @cached_property
    def columns(self) -> tuple[DesignColumn, ...]:
        """All but the intercept and those dropped."""
        found = []
        for number, term in enumerate(self.factors):
            numbers = [column for column in term if isinstance(column, DesignNumber)]
            half, centre = float(np.prod([each.half for each in numbers])), sum(each.centre for each in numbers)
            for product in np.ndindex(*(len(column.names) for column in term)):
                names = [f"{column.factor}{column.names[at]}" for column, at in zip(term, product, strict=True)]
                found.append(DesignColumn(":".join(names), number, product, half, centre))
        return tuple(column for column in found if column.name not in self.dropped)

    @property
    def names(self) -> tuple[str, ...]:
        return (*([INTERCEPT] if self.formula.intercept else []), *(column.name for column in self.columns))

    def matrix(self, table: OwnerTable) -> Matrix:
        """One row for each row of the table; NaN where something is missing."""
        values = [[column.values(table) for column in term] for term in self.factors]
        found = [np.ones(len(table))] if self.formula.intercept else []
        for column in self.columns:
            parts = [block[:, at] for block, at in zip(values[column.term], column.product, strict=True)]
            found.append(np.prod(parts, axis=0))
        return np.stack(found, axis=1)

    def original_units(self) -> Matrix:
        """The matrix T with β = T·β_scaled: coefficients of the columns as they are."""
        first = int(self.formula.intercept)
        units = np.eye(first + len(self.columns))
        for place, column in enumerate(self.columns, first):
            units[place, place] = 1 / column.half
            if column.centre:  # only main effects are centred, and only beside an intercept
                units[0, place] = -column.centre / column.half
        return units


def number_column(factor: Factor, declared: ColumnDeclaration, *, centred: bool) -> DesignNumber:
    if declared.bounds is None and declared.type == "boolean":
        low, high = 0.0, 1.0
    elif declared.bounds is None:
        raise ConfigError(
            f"column '{factor.column}' has no bounds; write bounds = [low, high] in its declaration, or use "
            f"C({factor.column}) with listed values"
        )
    else:
        low, high = declared.bounds
    if factor.use == "log":
        if low <= 0:
            raise ConfigError(f"log({factor.column}) needs bounds above 0; they are [{low:g}, {high:g}]")
        low, high = log(low), log(high)
    centre = (low + high) / 2 if centred else 0.0
    return DesignNumber(factor, centre, (high - low) / 2 if centred else max(abs(low), abs(high)))


def category_column(factor: Factor, declared: ColumnDeclaration, *, reference: bool) -> DesignCategory:
    """Every level a group of its own."""
    if declared.categories is None:
        raise ConfigError(f"column '{factor.column}' has no list of values; write values = […] in its declaration")
    labels = tuple(str(each) for each in declared.categories)
    return DesignCategory(factor, tuple((place,) for place in range(len(labels))), labels, reference)


def is_category(factor: Factor, declared: ColumnDeclaration) -> bool:
    return factor.use == "category" or (factor.use == "as it is" and declared.values is not None)


def make_design(formula: Formula, declaration: TableDeclaration) -> Design:
    """The design before anything is known of how many rows levels have."""
    centred, constant = formula.intercept and not formula.interacts, formula.intercept
    terms = []
    for term in formula.terms:
        columns: list[DesignFactor] = []
        for factor in term:
            declared = usable(declaration, factor.column)
            if is_category(factor, declared):
                columns.append(category_column(factor, declared, reference=constant or len(term) > 1))
                constant = constant or len(term) == 1
            else:
                columns.append(number_column(factor, declared, centred=centred))
        terms.append(tuple(columns))
    return Design(formula, tuple(terms))


def usable(declaration: TableDeclaration, column: str) -> ColumnDeclaration:
    """The declaration of a column that sums may be made of."""
    declared = declaration.column(column)
    if declared.level == "private":
        raise ConfigError(f"column '{column}' is private and cannot be used in a fit")
    return declared
