"""What a statement reads: tables and subqueries with their columns, and what FROM offers of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import OWN_NAMES, refused
from winnow.analytics.sql.described import Described, described_column
from winnow.analytics.sql.sql_text import shown_text
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.core import ConfigError, suggest
from winnow.core.untrusted_text import one_line

MARK = "winnow mark "
"""With a number: columns that a subquery gets (`subquery_marks.py`)."""


@dataclass(frozen=True, kw_only=True, order=True)
class Lookup:
    """A table that all owners have, and the columns by which a subquery joins it: if they tell its rows apart, no other
    row is counted more often for it.
    """

    table: str
    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Relation:
    """Columns by their names in small letters: DuckDB tells no others apart."""

    columns: Mapping[str, Described]
    name: str = ""
    """Of a table; empty for a subquery."""
    divided: bool = True
    """Whether owners have different rows of it; else all have the same."""
    joined: bool = False
    """Whether a row of it may be made of rows of several tables."""
    tables: frozenset[str] = frozenset()
    """Of owners' different rows, that its own are made of."""
    told: bool = False
    """Whether an owner chose its rows, and told them all parties."""
    lookups: frozenset["Lookup"] = frozenset()
    """Of the joins that its rows are made by."""
    divisions: tuple[str, ...] = ()
    """Columns with 1 where a condition holds that it chose rows by."""
    repeated: frozenset[str] = frozenset()
    """What these joins have more than once, or may count more than once."""

    @property
    def together(self) -> str | None:
        """The column by whose values its rows lie together."""
        return next((name for name, each in self.columns.items() if each.together is not None), None)


@dataclass(frozen=True, kw_only=True, eq=False)
class FromItem:
    """A table or subquery under its alias."""

    alias: str
    relation: Relation
    node: exp.Expr
    optional: bool = False
    """Whether LEFT JOIN makes up rows without it."""


@dataclass(frozen=True, kw_only=True)
class RowSource:
    """What a FROM clause offers."""

    items: tuple[FromItem, ...]
    known: Mapping[str, Relation]
    """Tables that subqueries may name."""
    merged: Mapping[str, str]
    """Columns of USING, and the alias of the first table that has them."""
    outer: "RowSource | None" = None
    """Of the statement around a condition's subquery."""
    apart: bool = False
    """Whether its two tables are at two owners."""

    def owner_of(self, node: exp.Expr) -> int | None:
        """Which of two owners has the columns of an expression; None if it has none."""
        items = {self.item_of(each) for each in node.find_all(exp.Column)}
        places = [place for place, item in enumerate(self.items) if item in items]
        if self.apart and len(places) > 1:
            shown = shown_text(node)
            raise refused(node, f"{shown}: its columns are at two owners; they can be joined by a key, and no more")
        return places[0] if places and self.apart else None

    def item_of(self, column: exp.Column) -> FromItem | None:
        """The table that a column of this FROM belongs to; ConfigError if it may be either of two."""
        name, table = column.name.lower(), column.table.lower()
        found = [each for each in self.items if name in each.relation.columns and table in ("", each.alias)]
        if len(found) > 1 and name in self.merged:
            found = [each for each in found if each.alias == self.merged[name]]
        if len(found) > 1:
            named = " or ".join(f"{each.alias}.{name}" for each in found)
            raise refused(column, f"column '{one_line(column.name)}' may be {one_line(named)}; write one of them")
        return found[0] if found else None

    def find(self, column: exp.Column) -> str | None:
        """The name of a column that is meant, or None."""
        if column.table and column.table.lower() not in [each.alias for each in self.items]:
            in_from = ", ".join(f"'{each.alias}'" for each in self.items)
            verb = "is" if len(self.items) == 1 else "are"
            raise refused(column, f"no table or alias '{one_line(column.table)}' is in FROM; {in_from} {verb}")
        return column.name.lower() if self.item_of(column) is not None else None

    def described(self, column: exp.Column) -> Described:
        item = self.item_of(column)
        if item is None and self.outer is not None:
            return self.outer.described(column)
        if item is None:
            self.find(column)
            names = [name for each in self.items for name in each.relation.columns if not name.startswith(MARK)]
            hint = self._as_text(column) or suggest(column.name, names, at_most=12)
            raise refused(column, f"there is no column '{one_line(column.name)}'; {hint}")
        known = item.relation.columns[column.name.lower()]
        if len(self.items) > 1:  # two tables may have columns of one name
            known = known.of(item.alias)
        return replace(known, conditional=True) if item.optional else known

    def _as_text(self, column: exp.Column) -> str | None:
        """What to write where a listed value stands without quotes, or in double ones, which are those of names."""
        for each in self.items:
            for name, known in each.relation.columns.items():
                if column.name in (known.values or ()):
                    return f"a value of {name} is written as a text: '{one_line(column.name)}'"
        return None

    def choices(self, column: exp.Column) -> list[exp.Expr]:
        """The conditions by which a subquery chose the rows that have this value in a column."""
        item = self.item_of(column)
        if item is None:
            return []
        marks = item.relation.columns[column.name.lower()].marks
        named = [(exp.column(mark, table=item.alias or None, quoted=True), value) for mark, value in marks]
        return [exp.EQ(this=self.written(each), expression=exp.convert(value)) for each, value in named]

    def two_valued(self, node: exp.Expr) -> list[exp.Expr]:
        """Of its columns that have one of two values, which rows have the larger: arithmetic can tell them apart."""
        known = ((each, self.described(each)) for each in node.find_all(exp.Column))
        return [
            exp.GT(this=each.copy(), expression=exp.convert(int(own.low)))
            for each, own in known
            if own.whole and own.high - own.low == 1
        ]

    def written(self, column: exp.Column) -> exp.Column:
        """The column with the one way to write it."""
        self.described(column)
        item = self.item_of(column)
        assert item is not None
        table = exp.to_identifier(item.alias, quoted=True) if len(self.items) > 1 else None
        written = exp.Column(this=exp.to_identifier(column.name.lower(), quoted=True), table=table)
        written.meta.update(column.this.meta)
        return written

    @property
    def divided(self) -> list[FromItem]:
        """The tables whose rows differ from owner to owner."""
        return [each for each in self.items if each.relation.divided]


class KnownTables(dict[str, Relation]):
    """The tables that a statement may name, and what every SELECT within it has turned out to read."""

    def __init__(self, tables: Mapping[str, Relation]) -> None:
        super().__init__(tables)
        self.defined = set[str]()
        """By WITH of one SELECT."""
        self.sources: list[tuple[exp.Select, RowSource]] = tables.sources if isinstance(tables, KnownTables) else []


def table_relation(table: str, declaration: TableDeclaration, *, told: bool = False) -> Relation:
    found: dict[str, Described] = {}
    for name, column in declaration.columns.items():
        if name.lower() in found:
            raise ConfigError(f"columns '{one_line(name)}' differ in case alone; SQL cannot tell them apart")
        if name.lower().startswith(OWN_NAMES):
            raise ConfigError(f"column '{one_line(name)}': names that begin with 'winnow' are Winnow's own")
        found[name.lower()] = described_column(name, column)
    divided = not declaration.replicated
    return Relation(
        columns=found, name=table, divided=divided, tables=frozenset({table.lower()} if divided else ()), told=told
    )
