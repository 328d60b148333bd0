"""For each of some public places, the k rows of all owners that are nearest to it:

    FROM stations s CROSS JOIN LATERAL (SELECT * FROM people p ORDER BY DISTANCE(s.x, s.y, p.x, p.y) LIMIT 20) n

LATERAL becomes a join of every place with every row, of which an owner keeps the k + 1 nearest to each place: no other
row of its own can be among the first k of all. Where these end is searched for in `nearest_rows.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.order_keys import OrderKey, order_keys
from winnow.analytics.sql.relations import Relation, RowSource
from winnow.analytics.sql.row_sources import limit_of
from winnow.analytics.sql.spatial_functions import is_spatial
from winnow.analytics.sql.sql_text import parsed
from winnow.core import ConfigError
from winnow.core.untrusted_text import one_line

PLACE, NEAR = "winnow place", "near"
"""Columns of an owner's pairs: the number of the place, and the distance."""
PREFIX = "winnow_near"


@dataclass(frozen=True, kw_only=True)
class NearestJoin:
    key: OrderKey
    count: int
    places: str
    """The alias of the table with the places."""
    columns: tuple[str, ...]
    """Of that table: its rows are numbered in their order, which is the same at every owner."""
    table: str

    @property
    def count_sql(self) -> str:
        return f"SELECT COUNT(*) FROM {exp.to_identifier(self.table, quoted=True).sql('duckdb')}"  # noqa: S608

    def number_places(self, rows: exp.Select) -> None:
        """Give the places their numbers."""
        item = rows.args["from_"]
        order = exp.Order(expressions=[exp.Ordered(this=exp.column(each, quoted=True)) for each in self.columns])
        number = exp.alias_(exp.Window(this=exp.RowNumber(), order=order), PLACE, quoted=True)
        numbered = exp.Select(expressions=[exp.Star(), number], from_=exp.From(this=item.this.copy()))
        item.set("this", exp.Subquery(this=numbered, alias=exp.TableAlias(this=exp.to_identifier(self.places))))

    def columns_shown(self) -> list[exp.Expr]:
        """The number of a pair's place, and its distance."""
        place = exp.alias_(exp.column(PLACE, table=self.places, quoted=True), PLACE, quoted=True)
        return [place, exp.alias_(parsed(self.key.sql), NEAR)]

    def sliced(self, sql: str) -> str:
        """Of an owner's pairs those that can be among the nearest."""
        order = f'PARTITION BY "{PLACE}" ORDER BY "{NEAR}" NULLS LAST'
        return f"SELECT * FROM ({sql}) AS pairs QUALIFY ROW_NUMBER() OVER ({order}) <= {self.count + 1}"  # noqa: S608


@dataclass(frozen=True, kw_only=True)
class WrittenNearest:
    """LATERAL as it stands in a statement, before columns are looked up."""

    node: exp.Expr
    """The distance, in columns of both tables."""
    count: int
    places: exp.Table

    def refused_places(self) -> ConfigError:
        places = f"{one_line(self.places.alias_or_name)}: the nearest rows are found of public places"
        return refused(
            self.places, f"{places}: of a table that is replicated, or of which only public columns are read"
        )

    def planned(self, source: RowSource) -> NearestJoin:
        for column in self.node.find_all(exp.Column):
            source.described(column)
        written = self.node.copy().transform(
            lambda each: source.written(each) if isinstance(each, exp.Column) else each
        )
        (key,) = order_keys(exp.Order(expressions=[exp.Ordered(this=written, nulls_first=False)]), source.described)
        item = source.items[0]
        if item.relation.divided:
            raise self.refused_places()
        columns = tuple(item.relation.columns)
        return NearestJoin(key=key, count=self.count, places=item.alias, columns=columns, table=self.places.name)


def take_nearest(tree: exp.Select, tables: Mapping[str, Relation]) -> WrittenNearest | None:
    """ORDER BY and LIMIT of LATERAL, which becomes a join of all rows; None if the statement has no LATERAL."""
    lateral = tree.find(exp.Lateral)
    if lateral is None:
        return None
    joins = tree.args.get("joins") or []
    from_ = tree.args.get("from_")
    if len(joins) != 1 or joins[0].this is not lateral or from_ is None or not isinstance(from_.this, exp.Table):
        raise refused(lateral, "LATERAL stands alone beside a table: FROM places s CROSS JOIN LATERAL (SELECT …) n")
    join, inner = joins[0], lateral.this.this if isinstance(lateral.this, exp.Subquery) else None
    on = join.args.get("on")
    if join.side or join.args.get("using") or (on is not None and on != exp.true()):
        raise refused(join, "LATERAL takes CROSS JOIN, or JOIN … ON TRUE")
    if not isinstance(inner, exp.Select) or not lateral.alias:
        raise refused(lateral, "LATERAL takes a SELECT in parentheses and a name for it")
    distance, count = _nearest(inner)
    _refuse_where(tree, lateral.alias)
    node = _moved(distance, inner, lateral.alias, tables)
    alias = exp.TableAlias(this=exp.to_identifier(lateral.alias, quoted=True))
    join.replace(exp.Join(this=exp.Subquery(this=inner.copy(), alias=alias), kind="CROSS"))
    return WrittenNearest(node=node, count=count, places=from_.this)


def _nearest(inner: exp.Select) -> tuple[exp.Expr, int]:
    """The distance and the number of rows, which are taken out."""
    others = [part for part in ("joins", "group", "having", "offset", "with_") if inner.args.get(part)]
    order, count = inner.args.get("order"), limit_of(inner)
    if others or not isinstance(inner.args["from_"].this if inner.args.get("from_") else None, exp.Table):
        raise refused(inner, "LATERAL selects rows of one table: SELECT … FROM t WHERE … ORDER BY DISTANCE(…) LIMIT k")
    keys = order.expressions if order is not None else []
    if len(keys) != 1 or not is_spatial(keys[0].this) or keys[0].args.get("desc") or not count:
        raise refused(inner, "LATERAL finds the nearest rows: ORDER BY DISTANCE(…) or KM(…) alone, and LIMIT 1 or more")
    for part in ("order", "limit"):
        inner.args[part].pop()
    distance: exp.Expr = keys[0].this
    return distance, count


def _refuse_where(tree: exp.Select, alias: str) -> None:
    where = tree.args.get("where")
    if where is not None and any(each.table.lower() in ("", alias.lower()) for each in where.find_all(exp.Column)):
        raise refused(
            where, "WHERE beside LATERAL is about the places, by their alias; write conditions on the rows into LATERAL"
        )


def _moved(distance: exp.Expr, inner: exp.Select, alias: str, tables: Mapping[str, Relation]) -> exp.Expr:
    """The distance outside of LATERAL, which shows the columns that it needs."""
    table = inner.args["from_"].this
    own = tables[table.name.lower()].columns if table.name.lower() in tables else {}
    names: dict[str, str] = {}

    def change(each: exp.Expr) -> exp.Expr:
        inside = isinstance(each, exp.Column) and (
            each.table.lower() == table.alias_or_name.lower() or (not each.table and each.name.lower() in own)
        )
        if not inside:
            return each
        name = names.setdefault(each.name.lower(), f"{PREFIX}{len(names)}")
        return exp.column(name, table=alias, quoted=True)

    moved = distance.copy().transform(change)
    for column, name in names.items():
        inner.append("expressions", exp.alias_(exp.column(column, quoted=True), name, quoted=True))
    return moved
