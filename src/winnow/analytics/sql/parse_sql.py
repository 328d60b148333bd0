"""SQL text to a syntax tree of which every node is known."""

import logging
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from winnow.analytics.sql.allowed_nodes import AGGREGATES, check_identifiers, check_nodes, check_texts, refused
from winnow.analytics.sql.histogram_function import expand_histograms
from winnow.analytics.sql.spatial_functions import expand_spatial
from winnow.analytics.sql.sql_text import shown_text
from winnow.core import ConfigError
from winnow.core.untrusted_text import one_line

logging.getLogger("sqlglot").setLevel(logging.CRITICAL)  # what it cannot read is refused below

MAX_NODES = 5_000
MOST_ROWS = (1 << 63) - 1
BEGINNINGS = ("SELECT", "WITH", "FROM")
TOO_DEEP = "the statement is nested too deeply; ask for less at once"


def parse_sql(sql: str) -> exp.Select:
    """One SELECT statement in DuckDB's dialect; ConfigError in one line for anything else."""
    try:
        statements = [each for each in sqlglot.parse(sql, read="duckdb") if each is not None]
    except SqlglotError as error:
        word = (sql.split(maxsplit=1) or [""])[0]
        if word.isalpha() and word.upper() not in BEGINNINGS:
            raise ConfigError(f"a query begins with SELECT or WITH, not with '{one_line(word)[:40]}'") from None
        raise ConfigError(_syntax_error(error)) from None
    except (RecursionError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        raise ConfigError("the statement cannot be read as SQL") from None
    if len(statements) != 1:
        raise ConfigError(f"write one statement; there are {len(statements) or 'none'}")
    tree = statements[0]
    if sum(1 for _ in tree.walk()) > MAX_NODES:
        raise ConfigError(f"the statement has more than {MAX_NODES:,} parts; ask for less at once")
    try:
        check_identifiers(tree)
        tree = expand_histograms(expand_spatial(tree))
        check_nodes(tree)
        check_texts(tree)
    except RecursionError:
        raise ConfigError(TOO_DEEP) from None
    if isinstance(tree, exp.Union):
        raise ConfigError(
            "UNION ALL joins rows before they are counted: write SELECT … FROM (SELECT … UNION ALL SELECT …)"
        )
    if not isinstance(tree, exp.Select):
        raise ConfigError("a query begins with SELECT or WITH")
    return tree


def order_of(select: exp.Select) -> list[exp.Ordered]:
    """What ORDER BY lists."""
    order = select.args.get("order")
    return list(order.expressions) if order is not None else []


def column_number(node: exp.Ordered, columns: int) -> int | None:
    """Which column of SELECT a number in ORDER BY means; None if there is none."""
    value = node.this.this if isinstance(node.this, exp.Neg) else node.this
    if not isinstance(value, exp.Literal):
        return None
    if value is not node.this or not value.is_int or not 1 <= int(value.this) <= columns:
        raise refused(node, f"ORDER BY {shown_text(node.this)}: SELECT has {columns} columns")
    return int(value.this)


def check_row_count(node: exp.Limit | exp.Offset) -> None:
    """ConfigError if LIMIT or OFFSET has something else than a number of rows."""
    written = node.expression
    if not isinstance(written, exp.Literal) or not written.is_int:
        raise refused(node, f"{type(node).__name__.upper()} takes a whole number")
    if int(written.this) > MOST_ROWS:
        raise refused(node, f"{type(node).__name__.upper()} takes a whole number up to {MOST_ROWS:,}")


def shows_rows(tree: exp.Select) -> bool:
    """Whether a statement asks for rows, and not for numbers about them."""
    own = [*tree.expressions, *([tree.args["having"]] if tree.args.get("having") else [])]
    return not tree.args.get("group") and not any(each.find(*AGGREGATES) for each in own)


@lru_cache(maxsize=64)
def tables_of(sql: str) -> tuple[str, ...]:
    """The tables that a statement reads, as it writes them."""
    tree = parse_sql(sql)
    defined = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    found: dict[str, str] = {}
    for each in tree.find_all(exp.Table):
        if each.name.lower() not in defined:
            found.setdefault(each.name.lower(), each.name)
    return tuple(found.values())


def _syntax_error(error: SqlglotError) -> str:
    details = getattr(error, "errors", None)
    if not details:
        return f"the statement cannot be read as SQL: {one_line(error)[:120]}"
    first = details[0]
    near, description = one_line(first.get("highlight") or "")[:40], one_line(first["description"]).split("<class")[0]
    if description.startswith("Required keyword"):  # it names an argument of the parser's own
        return f"the statement cannot be read as SQL: something is missing after '{near}' (line {first['line']})"
    return f"the statement cannot be read as SQL: {description[:120].strip()} near '{near}' (line {first['line']})"
