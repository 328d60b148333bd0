"""What a statistics question means for a table: which of its columns are numbers, categories and groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.question import MergedTerms
from winnow.analytics.stats.statistics_question import StatisticsQuestion
from winnow.analytics.tables.declaration import ColumnDeclaration, TableDeclaration
from winnow.core import ConfigError

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

MAX_CELLS = 20_000
MAX_CORRELATED = 60
MISSING = -1
"""`OwnerTable.codes` of a cell without a value; a value that is not listed is below it."""


@dataclass(frozen=True, kw_only=True)
class NumberColumn:
    """A column of numbers, which are measured from the middle of their bounds in units of the range: |u| ≤ ½."""

    name: str
    low: float
    high: float
    whole: bool
    missing: bool = True
    """Whether any row may lack a value."""

    @property
    def range(self) -> float:
        return self.high - self.low

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    def units(self, table: "OwnerTable") -> NDArray[np.float64]:
        return (table.numbers(self.name) - self.middle) / self.range


@dataclass(frozen=True, kw_only=True)
class CategoryColumn:
    """A column with listed values; any others count together as one more."""

    name: str
    values: tuple[str, ...]
    missing: bool = True
    other: bool = True
    """Whether any row may have a value that is not listed."""

    @property
    def count(self) -> int:
        """How many categories there are, another value included."""
        return len(self.values) + self.other

    def codes(self, table: "OwnerTable") -> NDArray[np.int64]:
        """The place of each row's value; the number of values for another one, −1 where it is missing."""
        codes = table.codes(self.name)
        return np.where(codes < MISSING, len(self.values), codes)


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Rows by the values of some columns; those with a value that is missing or not listed are the rest."""

    columns: tuple[CategoryColumn, ...]
    rest: bool = True
    """Whether any row may belong to no group."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the groups without the rest; none where there are no columns."""
        combined = product(*(column.values for column in self.columns))
        return tuple(", ".join(each) for each in combined) if self.columns else ()

    @property
    def count(self) -> int:
        """Groups and the rest; without any columns all rows are one group."""
        return prod(len(column.values) for column in self.columns) + self.rest if self.columns else 1

    def codes(self, table: "OwnerTable") -> NDArray[np.int64]:
        place = np.zeros(len(table), np.int64)
        rest = np.zeros(len(table), bool)
        for column in self.columns:
            codes = column.codes(table)
            outside = (codes < 0) | (codes == len(column.values))
            place = place * len(column.values) + np.where(outside, 0, codes)
            rest |= outside
        return np.where(rest, len(self.labels), place)


EVERYBODY = Grouping(columns=())


@dataclass(frozen=True, kw_only=True)
class StatisticsPlan:
    numbers: tuple[NumberColumn, ...]
    categories: tuple[CategoryColumn, ...]
    grouping: Grouping
    order: tuple[str, ...]
    """The columns as the question, or else the declaration, has them."""
    skipped: dict[str, str]
    """Columns that nothing is told of, and why; none of them was named."""


def make_plan(question: StatisticsQuestion, terms: MergedTerms) -> StatisticsPlan:
    """Check every column that a question names; a ConfigError says what to do."""
    declaration = terms.declaration
    numbers, categories, skipped = list[NumberColumn](), list[CategoryColumn](), dict[str, str]()
    for name in question.columns or declaration.columns:
        reason = _unusable(declaration.column(name))
        if reason and question.columns:
            raise ConfigError(f"column '{name}' {reason}")
        if reason:
            skipped[name] = reason
        elif declaration.columns[name].categories is not None:
            categories.append(category_column(declaration, name))
        else:
            numbers.append(number_column(declaration, name))
    grouping = Grouping(columns=tuple(category_column(declaration, name) for name in question.by))
    plan = StatisticsPlan(
        numbers=tuple(numbers),
        categories=tuple(each for each in categories if each.name not in question.by),
        grouping=grouping,
        order=tuple(name for name in question.columns or declaration.columns if name not in (*skipped, *question.by)),
        skipped=skipped,
    )
    _check_size(question, plan)
    return plan


def number_column(declaration: TableDeclaration, name: str) -> NumberColumn:
    column = declaration.column(name)
    if column.categories is not None:
        raise ConfigError(f"column '{name}' has listed values; a column of numbers is needed")
    if reason := _unusable(column):
        raise ConfigError(f"column '{name}' {reason}")
    assert column.bounds is not None
    return NumberColumn(name=name, low=column.bounds[0], high=column.bounds[1], whole=column.known_type == "integer")


def category_column(declaration: TableDeclaration, name: str) -> CategoryColumn:
    column = declaration.column(name)
    if column.level == "private":
        raise ConfigError(f"column '{name}' is private; nothing can be told of it")
    if column.categories is None:
        raise ConfigError(f"column '{name}' has no list of values; declare values = […] to count by it")
    return CategoryColumn(name=name, values=tuple(str(value) for value in column.categories))


def _unusable(column: ColumnDeclaration) -> str:
    if column.level == "private":
        return "is private; nothing can be told of it"
    if column.categories is not None:
        return ""
    if column.known_type == "text":
        return "has no list of values; declare values = […] to count them"
    return "" if column.bounds is not None else "has no bounds; declare bounds = [low, high]"


def _check_size(question: StatisticsQuestion, plan: StatisticsPlan) -> None:
    groups = plan.grouping.count + 1
    bins = (question.histograms + 4) * len(plan.numbers)
    cells = groups * (bins + sum(len(column.values) + 3 for column in plan.categories))
    if cells > MAX_CELLS:
        raise ConfigError(f"the question asks for {cells:,} cells, at most {MAX_CELLS:,} can be told; ask for less")
    if not plan.numbers and not plan.categories and not question.tests:
        raise ConfigError(f"no column can be described: {_reasons(plan.skipped)}")
    if question.correlation and not 2 <= len(plan.numbers) <= MAX_CORRELATED:
        raise ConfigError(f"correlation needs 2 to {MAX_CORRELATED} columns of numbers; here it is {len(plan.numbers)}")
    for name, wanted in (("quantiles", question.quantiles), ("histograms", question.histograms)):
        if wanted and not plan.numbers:
            raise ConfigError(f"{name} need a column of numbers with bounds; there is none")
    _check_tests(question, plan)
    if question.histogram_range == "quantiles" and not question.histograms:
        raise ConfigError("a range by quantiles needs histograms; add --histograms N")


def _check_tests(question: StatisticsQuestion, plan: StatisticsPlan) -> None:
    """What divides the same rows in two ways would tell, by subtraction, of few of them."""
    if len(question.by) > 1 and question.tests:
        raise ConfigError("tests cannot be shown together with groups by several columns; ask for the tests separately")
    timed = [test.partition(":")[2].split(",")[0].strip() for test in question.tests if test.startswith("survival:")]
    if len({*timed}) < len(timed):
        raise ConfigError(f"survival by '{timed[0]}' can be told in one way only; ask for the others by themselves")
    if both := [column.name for column in plan.numbers if question.histograms and column.name in timed]:
        raise ConfigError(f"survival by '{both[0]}' cannot be shown together with its histogram; ask for it separately")


def _reasons(skipped: dict[str, str]) -> str:
    named: Sequence[str] = [f"'{name}' {reason}" for name, reason in skipped.items()]
    return "; ".join(named[:2]) + ("; …" if len(named) > 2 else "")
