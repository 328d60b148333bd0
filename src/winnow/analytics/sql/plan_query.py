"""From a statement and a declaration to a plan. Everything that is refused is refused here, before any row is read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import duckdb
from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import AGGREGATES, line_of, refused
from winnow.analytics.sql.check_plan import check_plan
from winnow.analytics.sql.describe_expression import describe_condition, describe_expression, refuse_subqueries
from winnow.analytics.sql.described import Described
from winnow.analytics.sql.duckdb_engine import add_table, connection, described_types
from winnow.analytics.sql.finish_query import check_finish
from winnow.analytics.sql.finish_sql import error_sources, finish_sql
from winnow.analytics.sql.flatten_subquery import flattened
from winnow.analytics.sql.join_multiples import join_multiples
from winnow.analytics.sql.join_units import unit_of
from winnow.analytics.sql.operand_types import WRITTEN, column_type
from winnow.analytics.sql.owner_join import OwnerJoin, owner_join
from winnow.analytics.sql.parse_sql import TOO_DEEP, column_number, parse_sql
from winnow.analytics.sql.plan_aggregates import AggregateReader
from winnow.analytics.sql.plan_first_rows import FirstRows, add_keys, take_first
from winnow.analytics.sql.plan_join_sides import join_sides
from winnow.analytics.sql.plan_keys import key_columns, query_key
from winnow.analytics.sql.plan_near_join import take_near
from winnow.analytics.sql.plan_nearest import NearestJoin, take_nearest
from winnow.analytics.sql.private_columns import PrivateUse, mixed_condition, private_use
from winnow.analytics.sql.public_keys import public_key_sql
from winnow.analytics.sql.query_plan import JoinSide, QueryAggregate, QueryKey, QueryPlan
from winnow.analytics.sql.relations import KnownTables, RowSource, table_relation
from winnow.analytics.sql.row_sources import row_source
from winnow.analytics.sql.safe_conditions import with_safe_conditions
from winnow.analytics.sql.sql_text import text_of, unique_names
from winnow.analytics.sql.subquery_marks import dividing_conditions, undivided_condition
from winnow.analytics.sql.table_sample import TableSample, take_sample
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.core import ConfigError
from winnow.core.untrusted_text import one_line

MAX_COLUMNS = 200


def make_query_plan(
    sql: str, tables: Mapping[str, TableDeclaration], *, apart: bool = False, told: Sequence[str] = ()
) -> QueryPlan:
    """The plan; ConfigError in one line names what is refused, and where. Every owner has all the tables, or two owners
    have them `apart`; rows of those `told` are made known to all before.
    """
    declared = tuple((name, each.model_dump_json()) for name, each in tables.items())
    try:
        return _make_plan(sql, declared, apart, frozenset(told))
    except RecursionError:
        raise ConfigError(TOO_DEEP) from None


@lru_cache(maxsize=64)
def _make_plan(sql: str, declared: tuple[tuple[str, str], ...], apart: bool, told: frozenset[str]) -> QueryPlan:
    """Simulated owners make the same plan, one after another."""
    declarations = {name: TableDeclaration.model_validate_json(each) for name, each in declared}
    tree = parse_sql(sql)
    sample = take_sample(tree)
    tables = KnownTables(
        {name.lower(): table_relation(name, each, told=name in told) for name, each in declarations.items()}
    )
    nearest = take_nearest(tree, tables)
    first, inner = take_first(tree, tables)
    if first is None:
        tree = flattened(tree)
    elif len(tables) > 1:
        raise refused(tree, "LIMIT in a subquery is supported where a statement names one table")
    if nearest is not None and apart:
        raise nearest.refused_places()
    near = take_near(tree) if apart else None
    source = row_source(tree, tables, apart=apart)
    join = owner_join(tree, source, near) if apart else None
    if first is not None and inner is not None:
        add_keys(inner, first)
    if not source.divided:
        raise refused(tree, "all owners have the same rows of what is in FROM; name a table whose rows are divided")
    with connection() as opened:
        for name, declaration in declarations.items():
            add_table(opened, name, declaration)
        planner = _Planner(
            tree=tree,
            source=source,
            sources=tables.sources,
            private=private_use(tree, tables.sources),
            join=join,
            opened=opened,
            tables=tuple(declarations),
            sample=sample,
            first=first,
            nearest=None if nearest is None else nearest.planned(source),
        )
        return planner.plan()


@dataclass(frozen=True, kw_only=True)
class _End:
    """The end of a statement, over keys and aggregates: its columns, HAVING and ORDER BY."""

    names: list[str]
    finished: list[exp.Expr]
    conditions: list[exp.Expr]
    order: list[exp.Expr]


@dataclass(kw_only=True)
class _Planner:
    tree: exp.Select
    source: RowSource
    sources: Sequence[tuple[exp.Select, RowSource]]
    """Of this SELECT and all others within the statement."""
    private: PrivateUse
    join: OwnerJoin | None
    opened: duckdb.DuckDBPyConnection
    tables: tuple[str, ...]
    sample: TableSample | None
    first: FirstRows | None
    nearest: NearestJoin | None

    def __post_init__(self) -> None:
        self.reader = AggregateReader(self.source)
        self._unit = unit_of(self.tree, self.source, nearest=self.nearest is not None) if self.join is None else None
        self._safe = with_safe_conditions(self.tree)

    def plan(self) -> QueryPlan:
        nodes, end = self._read()
        types = self._types(nodes)
        keys = [
            query_key(f"k{place}", node, types[place], self.source, self.opened) for place, node in enumerate(nodes)
        ]
        self.reader.divide([self._resolved(each, {}) for each in dividing_conditions(self.tree, self.source)])
        aggregates = self.reader.aggregates(types[len(keys) :])
        self._check_end(end, [*keys, *aggregates])
        unlisted = [key for key in keys if key.values is None]
        sides = None if self.join is None else self._sides(self.join, keys, aggregates)
        plan = QueryPlan(
            tables=self.tables,
            keys=tuple(keys),
            aggregates=tuple(aggregates),
            local_sql="" if sides else self._local(keys, self.reader.columns()),
            public_sql=public_key_sql(self.tree, self.source, unlisted) if unlisted and not sides else None,
            finish_sql=finish_sql(self.tree, end.finished, end.names, end.conditions, end.order, keys, aggregates),
            columns=tuple(end.names),
            error_columns=tuple(error_sources(end.finished)),
            copies=sum(1 for _ in self.tree.find_all(exp.Table)) - sum(1 for _ in self.tree.find_all(exp.CTE)),
            counted=self._counted(),
            indicators=self.reader.indicators,
            private=self.private.chosen,
            private_beside=None if self.private.beside is None else str(self.private.refusal()),
            sample=self.sample,
            first=self.first,
            nearest=self.nearest,
            overlapping=self._unit is not None and len(self.source.items) > 1,
            rows=() if self._unit is None else tuple(each.alias for each in self._unit.columns()[1:]),
            undivided=undivided_condition(self.sources),
            mixed=mixed_condition(self.sources, self._extremes(), self.source),
            shared=any(not item.relation.divided for item in self.source.items),
            repeated=tuple(sorted(name for item in self.source.items for name in item.relation.repeated)),
            lookups=tuple(sorted({each for item in self.source.items for each in item.relation.lookups})),
            multiples=() if sides else join_multiples(self.tree, self.source),
            sides=sides,
            near=None if self.join is None else self.join.near,
        )
        check_plan(plan, self.tree, self.source, list(self.reader.found.values()))
        for sql in (plan.local_sql,) if sides is None else [each.local_sql for each in sides]:
            described_types(self.opened, sql)
        check_finish(plan)
        return plan

    def _read(self) -> tuple[list[exp.Expr], _End]:
        """The keys of GROUP BY, and the end of the statement, whose aggregates the reader knows then."""
        outputs = list(self._outputs())
        aliases = {name.lower(): value for value, name, given in outputs if given}
        nodes = list(self._key_nodes([value for value, _, _ in outputs], aliases))
        self._key_names = {text_of(node): f"k{place}" for place, node in enumerate(nodes)}
        finished = [self._finished(value) for value, _, _ in outputs]
        having = self.tree.args.get("having")
        conditions = [self._finished(self._resolved(having.this, aliases, source_first=True))] if having else []
        order = [self._ordered(each, aliases, len(outputs)) for each in _listed(self.tree.args.get("order"))]
        if not self.reader.found and not nodes:
            raise refused(self.tree, "a SELECT without aggregates would show rows; COUNT, SUM, AVG and others do not")
        self.reader.check_levels()
        self.reader.check_arguments()
        for node in nodes:
            describe_expression(node, self.source.described)
        names = unique_names([name for _, name, _ in outputs])
        return nodes, _End(names=names, finished=finished, conditions=conditions, order=order)

    def _check_end(self, end: _End, released: Sequence[QueryKey | QueryAggregate]) -> None:
        """Whether types fit in the end of the statement: it would fail only after all has been opened and paid for."""
        known = {each.name: Described(type=column_type(each.type), duckdb_type=each.type) for each in released}
        for node in (*end.finished, *(each.this for each in end.order)):
            describe_expression(node, lambda column: known[column.name])
        for node in end.conditions:
            describe_condition(node, lambda column: known[column.name])

    def _extremes(self) -> list[exp.Expr]:
        """MIN and MAX, with their FILTER."""
        return [each for each in self.reader.found.values() if each.find(exp.Min, exp.Max)]

    def _sides(
        self, join: OwnerJoin, keys: list[QueryKey], aggregates: list[QueryAggregate]
    ) -> tuple[JoinSide, JoinSide]:
        arguments = dict.fromkeys(one for each in aggregates for one in each.inputs)
        return join_sides(self.tree, self.source, join, keys, [*arguments, *self.reader.indicators], self.sources)

    def _counted(self) -> str:
        if self.join is not None and self.join.near is not None:
            return "rows of each owner"
        if self.join is not None:
            return f"different {one_line(self.join.keys[0][0].name)}"
        return "rows" if self._unit is None else self._unit.words

    def _outputs(self) -> Iterator[tuple[exp.Expr, str, bool]]:
        """Each expression of SELECT, its name, and whether that was given by AS."""
        if not 0 < len(self.tree.expressions) <= MAX_COLUMNS:
            raise refused(self.tree, f"a statement has 1 to {MAX_COLUMNS} columns, not {len(self.tree.expressions)}")
        for each in self.tree.expressions:
            if isinstance(each, exp.Star):
                raise refused(each, "SELECT * would show rows; name columns of GROUP BY and aggregates")
            value = self._resolved(each.unalias(), {})
            written = each.unalias()
            name = each.alias or (written.name if isinstance(written, exp.Column) else written.sql("duckdb"))
            yield value, one_line(name)[:200], bool(each.alias)

    def _resolved(self, node: exp.Expr, aliases: Mapping[str, exp.Expr], *, source_first: bool = False) -> exp.Expr:
        """With columns by their own names alone, and aliases written out."""
        refuse_subqueries(node)

        def change(each: exp.Expr) -> exp.Expr:
            if not isinstance(each, exp.Column):
                return each
            alias = aliases.get(each.name.lower()) if not each.table else None
            if alias is not None and not (source_first and self.source.find(each)):
                return exp.Paren(this=alias.copy()) if isinstance(alias, exp.Binary | exp.Not) else alias.copy()
            return self.source.written(each)

        return node.copy().transform(change)

    def _key_nodes(self, outputs: list[exp.Expr], aliases: Mapping[str, exp.Expr]) -> Iterator[exp.Expr]:
        group = self.tree.args.get("group")
        for each in group.expressions if group else ():
            if isinstance(each, exp.Literal) and each.is_int:
                if not 1 <= int(each.this) <= len(outputs):
                    raise refused(each, f"GROUP BY {one_line(each.this)}: SELECT has {len(outputs)} columns")
                node = outputs[int(each.this) - 1]
            else:
                node = self._resolved(each, aliases, source_first=True)
            if found := node.find(*AGGREGATES):
                raise refused(found, "an aggregate within GROUP BY is not supported")
            yield node.unnest()

    def _finished(self, node: exp.Expr) -> exp.Expr:
        """Over what is opened: keys and aggregates are columns, and no other column is left."""

        def change(each: exp.Expr) -> exp.Expr:
            name = self._key_names.get(text_of(each))
            if name is None and isinstance(each, tuple(AGGREGATES)):
                name = self.reader.read(each)
            if name is not None:
                released = exp.column(name, table="released")  # an alias of the statement may have the same name
                released.this.meta["line"] = line_of(each)
                released.meta[WRITTEN] = each.copy()
                return released
            if isinstance(each, exp.Column):
                level = self.source.described(each).level
                if level == "private":
                    raise refused(each, f"column '{each.name}' is private and cannot be shown; it may stand in WHERE")
                raise refused(each, f"column '{each.name}' stands neither in GROUP BY nor in an aggregate")
            if isinstance(each, exp.Subquery | exp.Select | exp.Star):
                raise refused(each, "SELECT within an expression is not supported here")
            return each

        return node.copy().transform(change)

    def _ordered(self, node: exp.Ordered, aliases: Mapping[str, exp.Expr], outputs: int) -> exp.Expr:
        if column_number(node, outputs) is not None:
            return node.copy()
        changed = node.copy()
        changed.set("this", self._finished(self._resolved(node.this, aliases)))
        return changed

    def _types(self, keys: list[exp.Expr]) -> list[str]:
        """DuckDB's types of keys and aggregates, from the statement itself on a table without rows."""
        nodes = [*keys, *(each for each in self.reader.found.values())]
        probe = self._rows(nodes)
        probe.set("where", self.tree.args["where"].copy() if self.tree.args.get("where") else None)
        if keys:
            probe.set("group", exp.Group(expressions=[each.copy() for each in keys]))
        return described_types(self.opened, probe.sql("duckdb"))

    def _rows(self, nodes: list[exp.Expr], tree: exp.Select | None = None) -> exp.Select:
        """SELECT these FROM the statement's tables."""
        parts = {name: (tree or self.tree).args.get(name) for name in ("with_", "from_", "joins")}
        rows = exp.Select(expressions=[node.copy() for node in nodes], **parts)
        return rows.copy()

    def _local(self, keys: list[QueryKey], arguments: list[exp.Expr]) -> str:
        named = key_columns(keys)
        ordered = [each for part in (self.first, self.nearest) if part is not None for each in part.columns_shown()]
        units = [] if self._unit is None else self._unit.columns()
        rows = self._rows([*named, *arguments, *units, *ordered] or [exp.Literal.number(1)], self._safe)
        if self._unit is not None:
            self._unit.number_rows(rows)
        if self.nearest is not None:
            self.nearest.number_places(rows)
        where = self._safe.args.get("where")
        rows.set("where", None if where is None else where.copy())
        return rows.sql("duckdb") if self.nearest is None else self.nearest.sliced(rows.sql("duckdb"))


def _listed(order: exp.Order | None) -> list[exp.Ordered]:
    return list(order.expressions) if order is not None else []
