"""Texts that DuckDB takes for dates. Of one that is none it would make NULL, which no row is equal to or beyond: the
answer would be empty, and nobody would know why.
"""

from collections.abc import Sequence
from functools import lru_cache

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.described import Described
from winnow.analytics.sql.duckdb_engine import connection
from winnow.core.untrusted_text import printable


def check_date_texts(node: exp.Expr, operands: Sequence[tuple[exp.Expr, Described]]) -> None:
    """ConfigError for a text that is not a date among operands of one type, of which some are dates."""
    dates = [each.unnest() for each, known in operands if known.type == "date"]
    if not dates:
        return
    kind = exp.DType.DATE if all(_is_day(each) for each in dates) else exp.DType.TIMESTAMP
    for each, _ in operands:
        check_date_text(node, each, kind)


def check_date_text(node: exp.Expr, operand: exp.Expr, kind: exp.DType) -> None:
    """ConfigError if an operand is a text that DuckDB cannot convert to this kind of date."""
    text = operand.unnest()
    if isinstance(text, exp.Literal) and text.is_string and not _is_date(text.this, kind == exp.DType.DATE):
        shown = printable(text.this)[:40].replace("\n", " ")  # with blanks around it, which may be what is wrong
        hint = "write one that exists, such as '2024-12-31', or '2024-12-31 18:30:00' with a time"
        raise refused(node, f"'{shown}' is not a date; {hint}")


def _is_day(node: exp.Expr) -> bool:
    """Columns and what is computed of them have a time of day, too."""
    return isinstance(node, exp.Cast | exp.TryCast) and node.args["to"].this == exp.DType.DATE


@lru_cache(maxsize=256)
def _is_date(text: str, day: bool) -> bool:
    """As DuckDB has it, which knows more ways to write one than a pattern would."""
    with connection() as opened:
        row = opened.execute(f"SELECT TRY_CAST(? AS {'DATE' if day else 'TIMESTAMP'}) IS NOT NULL", [text]).fetchone()
    return row == (True,)
