"""FROM: which columns the rows of a statement have. Subqueries stay within an owner: they choose rows and compute.

Joins within an owner are the joins of all rows where tables are replicated, or lie together by what they are joined on
(`join_links.py`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import AGGREGATES, OWN_NAMES, refused
from winnow.analytics.sql.describe_expression import describe_expression
from winnow.analytics.sql.described import Described, described_column, either
from winnow.analytics.sql.subquery_marks import MARK, marked_columns, marked_divisions, marked_union
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.core import ConfigError, suggest
from winnow.core.untrusted_text import one_line


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
            shown = one_line(node.sql("duckdb"))[:60].replace('"', "")
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
            raise refused(
                column, f"there is no column '{one_line(column.name)}'; {suggest(column.name, names, at_most=12)}"
            )
        known = item.relation.columns[column.name.lower()]
        return replace(known, conditional=True) if item.optional else known

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


def row_source(
    select: exp.Select, tables: Mapping[str, Relation], outer: RowSource | None = None, *, apart: bool = False
) -> RowSource:
    """The source of a SELECT, whose joins and conditions are checked; `tables` are those of the owner, or of two owners
    that have them `apart`.
    """
    from winnow.analytics.sql.join_links import check_links, refuse_distance_join  # noqa: PLC0415 - they need each other

    known = KnownTables(tables)
    with_ = select.args.get("with_")
    for cte in with_.expressions if with_ is not None else ():
        if cte.alias.lower() in known.defined:
            raise refused(cte, f"WITH has two tables called '{one_line(cte.alias)}'")
        known.defined.add(cte.alias.lower())
        known[cte.alias.lower()] = _rows_of(cte.this, known, shown=True)
    from_ = select.args.get("from_")
    if from_ is None:
        raise refused(select, f"the statement has no FROM; name a table: {', '.join(tables)}")
    source = RowSource(items=(_item(from_.this, known),), known=known, merged={}, outer=outer, apart=apart)
    for join in select.args.get("joins") or ():
        source = _joined(source, join, known)
    if apart:
        refuse_distance_join(select, source)
    for join in select.args.get("joins") or ():
        if join.args.get("on"):
            check_condition(join.args["on"], source)
    if select.args.get("where"):
        check_condition(select.args["where"].this, source)
    if not apart:
        check_links(select, source)
    known.sources.append((select, source))
    return source


def _joined(source: RowSource, join: exp.Join, known: Mapping[str, Relation]) -> RowSource:
    item = _item(join.this, known)
    if join.side == "LEFT":
        item = replace(item, optional=True)
    if any(each.alias == item.alias for each in source.items):
        raise refused(join, f"two tables in FROM are called '{one_line(item.alias)}'; give one an alias")
    merged = dict(source.merged)
    for name in (each.name.lower() for each in join.args.get("using") or ()):
        owner = source.item_of(exp.column(name))
        if owner is None or name not in item.relation.columns:
            raise refused(join, f"USING ({one_line(name)}): both sides of the join need such a column")
        merged[name] = owner.alias
    return replace(source, items=(*source.items, item), merged=merged)


def _item(node: exp.Expr, known: Mapping[str, Relation]) -> FromItem:
    if isinstance(node, exp.Table):
        if node.name.lower() not in known:
            raise refused(node, f"no table '{one_line(node.name)}'; {suggest(node.name, known, at_most=12)}")
        return FromItem(alias=(node.alias or node.name).lower(), relation=known[node.name.lower()], node=node)
    if isinstance(node, exp.Subquery):
        return FromItem(alias=node.alias.lower(), relation=_rows_of(node.this, known, shown=True), node=node)
    raise refused(node, f"{type(node).__name__.upper()} in FROM is not supported")


def _rows_of(
    node: exp.Expr, known: Mapping[str, Relation], outer: RowSource | None = None, *, shown: bool = False
) -> Relation:
    """The rows of a subquery, which are `shown` to the statement around it where they stand in FROM."""
    from winnow.analytics.sql.joined_subquery import joined_often  # noqa: PLC0415 - they need each other

    if isinstance(node, exp.Subquery):
        return _rows_of(node.this, known, outer, shown=shown)
    if isinstance(node, exp.Union):
        return _united(node, known, outer, shown=shown)
    if not isinstance(node, exp.Select):
        raise refused(node, f"{type(node).__name__.upper()} in FROM is not supported")
    for name, words in SUBQUERY_PARTS.items():
        if node.args.get(name):
            raise refused(node, f"{words} in a subquery would need the rows of all owners; it is not supported")
    _refuse_aggregates(node)
    source = row_source(node, known, outer)
    columns = _projected(node, source)
    lookups, repeated = joined_often(node, source)
    divisions: tuple[str, ...] = ()
    if shown:
        columns, divisions = marked_divisions(node, source, marked_columns(node, source, columns))
    return Relation(
        columns=columns,
        divisions=divisions,
        divided=bool(source.divided),
        joined=len(source.items) > 1 or source.items[0].relation.joined,
        tables=frozenset[str]().union(*(item.relation.tables for item in source.items)),
        told=any(item.relation.told for item in source.items),
        lookups=lookups,
        repeated=repeated,
    )


def _united(node: exp.Union, known: Mapping[str, Relation], outer: RowSource | None, *, shown: bool) -> Relation:
    """The rows of UNION ALL. A table stands there once: a row that counts several times would make up the minimum."""
    parts = list(_parts(node))
    found = [_rows_of(each, known, outer) for each in parts]
    first = found[0]
    for place, each in enumerate(found):
        if len(each.columns) != len(first.columns):
            raise refused(node, f"UNION ALL joins {len(first.columns)} columns with {len(each.columns)}")
        if each.divided != first.divided:
            raise refused(node, "UNION ALL of a replicated table would count its rows once for each owner")
        if twice := each.tables & frozenset[str]().union(*(other.tables for other in found[:place])):
            raise refused(
                node, f"UNION ALL would count rows of {one_line(min(twice))} twice; choose them by WHERE … OR …"
            )
    listed = [each.columns for each in found]
    if shown:
        columns = marked_union(node, parts, listed)
    else:
        columns = {name: either([[*own.values()][place] for own in listed]) for place, name in enumerate(listed[0])}
    return Relation(
        columns=columns,
        divided=first.divided,
        joined=any(each.joined for each in found),
        tables=frozenset[str]().union(*(each.tables for each in found)),
        told=any(each.told for each in found),
        lookups=frozenset[Lookup]().union(*(each.lookups for each in found)),
        repeated=frozenset[str]().union(*(each.repeated for each in found)),
    )


def _parts(node: exp.Expr) -> Iterator[exp.Select]:
    """The SELECTs of UNION ALL."""
    if isinstance(node, exp.Union):
        yield from _parts(node.this)
        yield from _parts(node.expression)
    elif isinstance(node, exp.Subquery):
        yield from _parts(node.this)
    elif isinstance(node, exp.Select):
        yield node
    else:
        raise refused(node, f"{type(node).__name__.upper()} in FROM is not supported")


SUBQUERY_PARTS = {
    "group": "GROUP BY",
    "having": "HAVING",
    "order": "ORDER BY",
    "limit": "LIMIT",
    "offset": "OFFSET",
}


def _refuse_aggregates(select: exp.Select) -> None:
    for each in select.expressions:
        if found := each.find(*AGGREGATES):
            raise refused(found, "an aggregate in a subquery would need the rows of all owners; it is not supported")


def _projected(select: exp.Select, source: RowSource) -> dict[str, Described]:
    """The columns of a subquery. No two have the same name, so what is checked here is what DuckDB takes."""
    found: dict[str, Described] = {}
    for each in select.expressions:
        if isinstance(each, exp.Star):
            named = [(item, name) for item in source.items for name in item.relation.columns]
            first = [each for each in named if _is_first(*each, source)]
            columns: list[tuple[str, exp.Expr]] = [(name, exp.column(name, table=item.alias)) for item, name in first]
        elif each.alias_or_name:
            columns = [(each.alias_or_name.lower(), each.unalias())]
        else:
            raise refused(each, "an expression of a subquery needs a name; write … AS name")
        for name, value in columns:
            if name in found:
                raise refused(each, f"a subquery has two columns called '{one_line(name)}'; give one another name")
            found[name] = describe_expression(value, source.described)
    return found


def _is_first(item: FromItem, name: str, source: RowSource) -> bool:
    """Of columns of USING, SELECT * has the first alone."""
    return source.merged.get(name, item.alias) == item.alias


def own_names(node: exp.Expr, source: RowSource) -> exp.Expr:
    """An expression with its columns by their own names alone."""

    def change(each: exp.Expr) -> exp.Expr:
        if not isinstance(each, exp.Column):
            return each
        source.described(each)
        written = own_column(each.name.lower())
        written.this.meta.update(each.this.meta)
        return written

    return node.copy().transform(change)


def own_column(name: str) -> exp.Column:
    return exp.Column(this=exp.to_identifier(name, quoted=True))


def limit_of(select: exp.Select) -> int | None:
    node = select.args.get("limit")
    if node is None:
        return None
    if not isinstance(node.expression, exp.Literal) or not node.expression.is_int:
        raise refused(node, "LIMIT takes a whole number")
    return int(node.expression.this)


def check_condition(node: exp.Expr, source: RowSource, *, required: bool = True) -> None:
    """Of WHERE or ON. `required`: no row passes for which it does not hold."""
    if isinstance(node, exp.And | exp.Or | exp.Not | exp.Paren):
        for each in node.iter_expressions():
            check_condition(each, source, required=required and not isinstance(node, exp.Or | exp.Not))
    elif isinstance(node, exp.Exists):
        _rows_of(_without_columns(node), source.known, source)
    elif isinstance(node, exp.In) and node.args.get("query"):
        _check_membership(node, source, required)
    else:
        describe_expression(node, source.described)


def _without_columns(node: exp.Exists) -> exp.Expr:
    """The subquery of EXISTS, whose columns nobody reads; it stays where it is in the statement."""
    select: exp.Expr = node.this
    if isinstance(select, exp.Select):
        _refuse_aggregates(select)
        select.set("expressions", [exp.alias_(exp.Literal.number(1), "found")])
    return select


def _check_membership(node: exp.In, source: RowSource, required: bool) -> None:
    """x IN (SELECT y …): rows with the same value lie together, or all owners have the same y."""
    if not isinstance(node.this, exp.Column):
        raise refused(node, "IN (SELECT …) takes a column before it")
    selected = _rows_of(node.args["query"], source.known)
    known = source.described(node.this)
    if len(selected.columns) != 1 or not isinstance(next(iter(node.args["query"].this.selects)).unalias(), exp.Column):
        raise refused(node, "IN (SELECT …) takes one column within")
    (other,) = selected.columns.values()
    if not selected.divided:
        return
    if not required:
        raise refused(node, "NOT IN (SELECT …) and OR depend on the rows of all owners; write NOT EXISTS (SELECT …)")
    if known.together is None or known.together != other.together:
        raise refused(
            node, f"IN (SELECT …) within an owner: {one_line(node.this.name)} and what is selected must lie together"
        )
