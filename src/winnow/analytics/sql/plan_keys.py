"""Keys of GROUP BY: of protected columns only what has a list of values."""

from collections.abc import Iterable

import duckdb
from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.describe_expression import describe_expression
from winnow.analytics.sql.described import Described
from winnow.analytics.sql.query_plan import QueryKey
from winnow.analytics.sql.relations import RowSource
from winnow.analytics.sql.sql_text import parsed, shown_text, tried

FLOATS = ("DOUBLE", "FLOAT")
GROUP_HINT = "group by a comparison or by CASE with constants, or declare values = […]"


def key_columns(keys: Iterable[QueryKey]) -> list[exp.Expr]:
    """The keys' texts by their names."""
    return [exp.alias_(tried(_compared(key), "VARCHAR"), key.name, quoted=True) for key in keys]


def _compared(key: QueryKey) -> exp.Expr:
    """−0 and 0 are one group, and have two texts: −0 + 0 is 0."""
    node = parsed(key.sql)
    return exp.Add(this=exp.paren(node), expression=exp.Literal.number(0)) if key.type in FLOATS else node


def query_key(name: str, node: exp.Expr, kind: str, source: RowSource, opened: duckdb.DuckDBPyConnection) -> QueryKey:
    """`kind` is DuckDB's type of it."""
    known = describe_expression(node, source.described)
    source.owner_of(node)
    shown = shown_text(node)
    if known.level == "private":
        named = next(each for each in node.find_all(exp.Column) if source.described(each).level == "private")
        raise refused(node, f"column '{named.name}' is private and cannot be shown; it may stand in WHERE")
    if known.level == "protected" and known.values is None:
        raise refused(node, f"GROUP BY {shown}: it is protected and has no list of values; {GROUP_HINT}")
    return QueryKey(name=name, sql=node.sql("duckdb"), type=kind, values=_texts(known, kind, opened))


def _texts(known: Described, kind: str, opened: duckdb.DuckDBPyConnection) -> tuple[str | None, ...] | None:
    """DuckDB's texts of the listed values, and NULL."""
    if known.values is None:
        return None
    texts = [f"TRY_CAST({exp.convert(each).sql('duckdb')} AS {kind})::VARCHAR" for each in known.values]
    row = opened.execute(f"SELECT {', '.join(texts)}").fetchone() if texts else ()
    assert row is not None
    return tuple(dict.fromkeys([*row, None]))
