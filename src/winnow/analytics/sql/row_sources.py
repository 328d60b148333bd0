"""FROM: which columns the rows of a statement have. Subqueries stay within an owner: they choose rows and compute."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import AGGREGATES, refused
from winnow.analytics.sql.describe_expression import describe_expression
from winnow.analytics.sql.described import Described, described_column, either
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.core import ConfigError, suggest
from winnow.core.untrusted_text import one_line

Relation: TypeAlias = Mapping[str, Described]
"""Columns by their names in small letters: DuckDB tells no others apart."""


@dataclass(frozen=True, kw_only=True)
class RowSource:
    """What a FROM clause offers, under its alias."""

    alias: str
    columns: Relation

    def find(self, column: exp.Column) -> str | None:
        """The name of a column that is meant, or None."""
        if column.table and column.table.lower() != self.alias:
            raise refused(column, f"no table or alias '{one_line(column.table)}' is in FROM; '{self.alias}' is")
        return column.name.lower() if column.name.lower() in self.columns else None

    def described(self, column: exp.Column) -> Described:
        name = self.find(column)
        if name is None:
            instead = suggest(column.name, self.columns, at_most=12)
            raise refused(column, f"there is no column '{one_line(column.name)}'; {instead}")
        return self.columns[name]


def table_relation(declaration: TableDeclaration) -> Relation:
    found: dict[str, Described] = {}
    for name, column in declaration.columns.items():
        if name.lower() in found:
            raise ConfigError(f"columns '{one_line(name)}' differ in case alone; SQL cannot tell them apart")
        found[name.lower()] = described_column(name, column)
    return found


def row_source(select: exp.Select, tables: Mapping[str, Relation]) -> RowSource:
    """The source of a SELECT; `tables` are those of the owner."""
    known = {**tables}
    with_ = select.args.get("with_")
    for cte in with_.expressions if with_ is not None else ():
        known[cte.alias.lower()] = _rows_of(cte.this, known)
    from_ = select.args.get("from_")
    if from_ is None:
        raise refused(select, f"the statement has no FROM; name a table: {', '.join(tables)}")
    return _source(from_.this, known)


def _source(node: exp.Expr, known: Mapping[str, Relation]) -> RowSource:
    if isinstance(node, exp.Table):
        if node.name.lower() not in known:
            raise refused(node, f"no table '{one_line(node.name)}'; {suggest(node.name, known, at_most=12)}")
        return RowSource(alias=(node.alias or node.name).lower(), columns=known[node.name.lower()])
    if isinstance(node, exp.Subquery):
        return RowSource(alias=node.alias.lower(), columns=_rows_of(node.this, known))
    raise refused(node, f"{type(node).__name__.upper()} in FROM is not supported")


def _rows_of(node: exp.Expr, known: Mapping[str, Relation]) -> Relation:
    """The columns of a subquery."""
    if isinstance(node, exp.Subquery):
        return _rows_of(node.this, known)
    if isinstance(node, exp.Union):
        one, other = _rows_of(node.this, known), _rows_of(node.expression, known)
        if len(one) != len(other):
            raise refused(node, f"UNION ALL joins {len(one)} columns with {len(other)}")
        return {name: either([one[name], right]) for name, right in zip(one, other.values(), strict=True)}
    if not isinstance(node, exp.Select):
        raise refused(node, f"{type(node).__name__.upper()} in FROM is not supported")
    for name, words in SUBQUERY_PARTS.items():
        if node.args.get(name):
            raise refused(node, f"{words} in a subquery would need the rows of all owners; it is not supported")
    if found := node.find(*AGGREGATES):
        raise refused(found, "an aggregate in a subquery would need the rows of all owners; it is not supported")
    source = row_source(node, known)
    if node.args.get("where"):
        describe_expression(node.args["where"].this, source.described)
    return _projected(node, source)


SUBQUERY_PARTS = {
    "group": "GROUP BY",
    "having": "HAVING",
    "order": "ORDER BY",
    "limit": "LIMIT",
    "offset": "OFFSET",
}


def _projected(select: exp.Select, source: RowSource) -> Relation:
    found: dict[str, Described] = {}
    for each in select.expressions:
        if isinstance(each, exp.Star):
            found |= source.columns
            continue
        if not each.alias_or_name:
            raise refused(each, "an expression of a subquery needs a name; write … AS name")
        found[each.alias_or_name.lower()] = describe_expression(each.unalias(), source.described)
    return found


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
