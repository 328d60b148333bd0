"""What a statement means for a table: rows that each owner selects, what is summed over them, and how it ends."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from winnow.analytics.sql.plan_first_rows import FirstRows
from winnow.analytics.sql.plan_near_join import NearGrid
from winnow.analytics.sql.plan_nearest import NearestJoin
from winnow.analytics.sql.relations import Lookup
from winnow.analytics.sql.table_sample import TableSample
from winnow.analytics.stats.plan import NumberColumn

Function: TypeAlias = Literal[
    "count",
    "count_distinct",
    "sum",
    "avg",
    "var",
    "var_pop",
    "stddev",
    "stddev_pop",
    "corr",
    "min",
    "max",
    "quantile",
    "quantile_cont",
]
SPREADS = ("var", "var_pop", "stddev", "stddev_pop")
DISTINCT = "count_distinct"
SAMPLED = ("count", "sum", "avg")
"""Functions whose error is known, of a sample."""
SEARCHES = ("min", "max", "quantile", "quantile_cont")


@dataclass(frozen=True, kw_only=True)
class QueryKey:
    """An expression of GROUP BY. Its values travel as DuckDB's text of them, NULL as None."""

    name: str
    sql: str
    type: str
    """DuckDB's."""
    values: tuple[str | None, ...] | None
    """None: whatever the owners have, which is public."""


@dataclass(frozen=True, kw_only=True)
class Argument:
    """A number of each row, NULL where the row does not count."""

    column: NumberColumn
    sql: str
    conditions: tuple[str, ...] = ()
    """The indicators of conditions by which it chooses the rows that count, or that count more than others."""
    differing: tuple[str, ...] = ()
    """The indicators of rows that have another value than the least in a column that it multiplies."""
    null_outside: tuple[str, ...] = ()
    """The indicators of conditions: where one does not hold it is NULL, whatever a row has."""
    zero_outside: tuple[str, ...] = ()
    """The same where it is 0 or NULL."""
    unseen: bool = False
    """Whether it chooses rows by something else, within a subquery."""
    columns: frozenset[str] = frozenset()
    """Of tables, that its numbers are made of."""

    @property
    def name(self) -> str:
        return self.column.name


@dataclass(frozen=True, kw_only=True)
class QueryAggregate:
    """COUNT(*) has no argument, CORR two. `level` is that of a quantile."""

    name: str
    function: Function
    arguments: tuple[Argument, ...]
    type: str
    filters: tuple[Argument, ...] = ()
    """Arguments of another owner: rows without them do not count."""
    level: float | None = None
    key: str | None = None
    """Of COUNT(DISTINCT …): the column of identifiers."""
    overlaps: bool = False
    """Whether another sum shares a column with it, but not all: rows that lack a value are in one of them alone."""
    conditions: tuple[str, ...] = ()
    """The indicators of conditions by which WHERE chose its rows."""
    date: bool = False
    """Whether its argument is a moment, in microseconds since 1970."""
    telling: str = ""
    """The aggregate as it is written, if it could tell a single row (`argument_terms.py`)."""

    @property
    def columns(self) -> frozenset[str]:
        return frozenset[str]().union(*(each.columns for each in self.arguments))

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """All that must be there for a row to count."""
        return (*self.arguments, *self.filters)


@dataclass(frozen=True, kw_only=True)
class JoinSide:
    """What one of two owners puts into a join: columns `key0`, `key1`, … say which rows belong together."""

    tables: tuple[str, ...]
    """Of those in its part of FROM, the ones whose rows are divided."""
    local_sql: str
    """Its rows that meet its conditions: what they are joined by, keys of GROUP BY as text, arguments as numbers."""
    matched_sql: str
    """What each of all its rows is joined by, whatever conditions say."""
    public_sql: str | None
    keys: tuple[QueryKey, ...]
    names: frozenset[str]
    """Of its arguments and indicators."""
    whole: bool
    """Whether it is all rows of a table."""


@dataclass(frozen=True, kw_only=True)
class QueryPlan:
    tables: tuple[str, ...]
    keys: tuple[QueryKey, ...]
    aggregates: tuple[QueryAggregate, ...]
    local_sql: str
    """The rows of an owner: keys as text, arguments as numbers. Empty where tables are at two owners."""
    public_sql: str | None
    """The values of keys that are not listed; no condition stands in it."""
    finish_sql: str
    """From what was opened (a table `released`) to the answer."""
    columns: tuple[str, ...]
    """The names of the answer's columns; those of standard errors follow in `finish_sql`."""
    error_columns: tuple[str | None, ...]
    """By column of the answer: the aggregate whose error it has."""
    copies: int
    """How often the statement names a table."""
    counted: str
    """What must be as many as the minimum: rows, or of a join what its rows belong to."""
    indicators: tuple[Argument, ...]
    """Columns with 1 where a condition of an argument holds, else 0."""
    private: bool
    """Whether a private column stands in the statement, and so in WHERE."""
    private_beside: str | None
    """What is wrong with it if it stands there beside others."""
    sample: TableSample | None
    """The rows that each owner takes, by chance."""
    first: FirstRows | None = None
    """The statement is about the first rows of all owners."""
    nearest: NearestJoin | None = None
    """The statement is about the rows that are nearest to each of some places."""
    overlapping: bool = False
    """Whether a row may be joined with several others, and so count more than once."""
    rows: tuple[str, ...] = ()
    """Columns that say which rows of tables a joined row is made of."""
    mixed: str | None = None
    """A condition on several columns at once that are not public."""
    undivided: str | None = None
    """A condition with a subquery that holds for one of several reasons."""
    shared: bool = False
    """Whether these are rows that all owners have."""
    repeated: tuple[str, ...] = ()
    """Tables that a subquery has more than once."""
    lookups: tuple[Lookup, ...] = ()
    """Tables whose rows these columns have to tell apart."""
    multiples: tuple[Lookup, ...] = ()
    """Tables that the join multiplies the rows of a unit by."""
    sides: tuple[JoinSide, JoinSide] | None = None
    """Of a join between two owners."""
    near: NearGrid | None = None
    """Of a join between two owners by distance."""

    @cached_property
    def identifiers(self) -> tuple[str, ...]:
        """The columns whose different values are counted."""
        return tuple(dict.fromkeys(each.key for each in self.aggregates if each.key is not None))

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        return tuple(dict.fromkeys(each for aggregate in self.aggregates for each in aggregate.inputs))
