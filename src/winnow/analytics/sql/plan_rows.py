"""A statement that shows rows as they are: which columns, in which order, and how many."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.describe_expression import describe_condition, describe_expression
from winnow.analytics.sql.duckdb_engine import add_table, connection, described_types
from winnow.analytics.sql.order_keys import OrderKey, order_keys
from winnow.analytics.sql.parse_sql import TOO_DEEP, column_number, parse_sql
from winnow.analytics.sql.relations import MARK, RowSource, table_relation
from winnow.analytics.sql.row_sources import limit_of, own_column, own_names, row_source
from winnow.analytics.sql.safe_conditions import with_safe_conditions
from winnow.analytics.sql.sql_text import parsed, tried, unique_names
from winnow.analytics.sql.table_sample import TableSample, take_sample
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.core import ConfigError
from winnow.core.untrusted_text import one_line

MAX_SHOWN_ROWS = 1_000
MAX_COLUMNS = 200


@dataclass(frozen=True, kw_only=True)
class RowsPlan:
    table: str
    columns: tuple[str, ...]
    local_sql: str
    """The rows of an owner: what is shown, and what they are sorted by."""
    order: tuple[OrderKey, ...]
    limit: int | None
    private: bool
    """Whether a private column stands in WHERE."""
    sample: TableSample | None

    @property
    def nearest(self) -> bool:
        return any(key.spatial for key in self.order)


def make_rows_plan(sql: str, table: str, declaration: TableDeclaration) -> RowsPlan:
    """The plan; ConfigError in one line names what is refused, and where."""
    try:
        return _make_plan(sql, table, declaration.model_dump_json())
    except RecursionError:
        raise ConfigError(TOO_DEEP) from None


@lru_cache(maxsize=64)
def _make_plan(sql: str, table: str, declared: str) -> RowsPlan:
    declaration = TableDeclaration.model_validate_json(declared)
    tree = parse_sql(sql)
    sample = take_sample(tree)
    if sample is not None and sample.method != "BERNOULLI":
        raise refused(tree, f"rows can be sampled by TABLESAMPLE BERNOULLI, not {sample.method}")
    source = row_source(tree, {table.lower(): table_relation(table, declaration)})
    if tree.args.get("having"):
        raise refused(tree.args["having"], "HAVING without GROUP BY or aggregates is not supported")
    if tree.args.get("offset"):
        raise refused(tree.args["offset"], "OFFSET over rows is not supported; choose rows by WHERE")
    if tree.args.get("where"):
        describe_condition(tree.args["where"].this, source.described)
    shown = list(_shown(tree, source))
    order = order_keys(_resolved_order(tree, shown, source), source.described)
    with connection() as opened:
        add_table(opened, table, declaration)
        types = described_types(opened, _statement(tree, [value for value, _ in shown]).sql("duckdb"))
        fields = [
            exp.alias_(tried(value, kind), f"s{place}")
            for place, ((value, _), kind) in enumerate(zip(shown, types, strict=True))
        ]
        keys = [exp.alias_(parsed(key.sql), key.name) for key in order]
        local_sql = _statement(with_safe_conditions(tree), [*fields, *keys]).sql("duckdb")
        described_types(opened, local_sql)
    private = {name.lower() for name, each in declaration.columns.items() if each.level == "private"}
    return RowsPlan(
        table=table,
        columns=tuple(unique_names([name for _, name in shown])),
        local_sql=local_sql,
        order=order,
        limit=limit_of(tree),
        private=any(each.name.lower() in private for each in tree.find_all(exp.Column)),
        sample=sample,
    )


def _shown(tree: exp.Select, source: RowSource) -> Iterator[tuple[exp.Expr, str]]:
    """What each column shows, and its name; * is all that may be shown."""
    if not 0 < len(tree.expressions) <= MAX_COLUMNS:
        raise refused(tree, f"a statement has 1 to {MAX_COLUMNS} columns, not {len(tree.expressions)}")
    for each in tree.expressions:
        if isinstance(each, exp.Star):
            for name, known in source.items[0].relation.columns.items():
                if known.level != "private" and not name.startswith(MARK):
                    yield own_column(name), name
            continue
        value = own_names(each.unalias(), source)
        for column in value.find_all(exp.Column):
            if source.described(column).level == "private":
                raise refused(each, f"column '{column.name}' is private and cannot be shown; it may stand in WHERE")
        describe_expression(value, source.described)
        written = each.unalias()
        name = each.alias or (written.name if isinstance(written, exp.Column) else written.sql("duckdb"))
        yield value, one_line(name)[:200]


def _resolved_order(tree: exp.Select, shown: list[tuple[exp.Expr, str]], source: RowSource) -> exp.Order | None:
    """ORDER BY with numbers and aliases of columns written out."""
    order = tree.args.get("order")
    if order is None:
        return None
    aliases = {each.alias.lower(): each.unalias() for each in tree.expressions if each.alias}
    nodes = []
    for node in order.expressions:
        value = node.this
        if (number := column_number(node, len(shown))) is not None:
            value = shown[number - 1][0]
        elif isinstance(value, exp.Column) and not value.table and value.name.lower() in aliases:
            value = own_names(aliases[value.name.lower()], source)
        else:
            value = own_names(value, source)
        changed = node.copy()
        changed.set("this", value.copy())
        nodes.append(changed)
    return exp.Order(expressions=nodes)


def _statement(tree: exp.Select, expressions: list[exp.Expr]) -> exp.Select:
    with_, where = tree.args.get("with_"), tree.args.get("where")
    return exp.Select(
        with_=with_.copy() if with_ is not None else None,
        expressions=[each.copy() for each in expressions],
        from_=tree.args["from_"].copy(),
        where=where.copy() if where is not None else None,
    )
