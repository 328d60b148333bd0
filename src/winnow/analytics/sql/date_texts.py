"""Texts that DuckDB takes for dates. Of one that is none it would make NULL, which no row is equal to or beyond: the
answer would be empty, and nobody would know why.
"""

from collections.abc import Iterable, Sequence

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.described import Described
from winnow.analytics.sql.duckdb_engine import connection
from winnow.core.untrusted_text import printable


def check_date_texts(node: exp.Expr, operands: Sequence[tuple[exp.Expr, Described]]) -> None:
    """ConfigError for a text that is not a date among operands of one type, of which some are dates."""
    dates = [each.unnest() for each, known in operands if known.type == "date"]
    if dates:
        kind = exp.DType.DATE if all(_is_day(each) for each in dates) else exp.DType.TIMESTAMP
        check_date_literals(node, [each for each, _ in operands], kind)


def check_date_literals(node: exp.Expr, operands: Iterable[exp.Expr], kind: exp.DType) -> None:
    """ConfigError if an operand is a text that DuckDB cannot convert to this kind of date."""
    plain = [each.unnest() for each in operands]
    wrong = _no_dates([each.this for each in plain if isinstance(each, exp.Literal) and each.is_string], kind)
    if wrong:
        shown = printable(wrong[0])[:40].replace("\n", " ")  # with blanks around it, which may be what is wrong
        hint = "write one that exists, such as '2024-12-31', or '2024-12-31 18:30:00' with a time"
        raise refused(node, f"'{shown}' is not a date; {hint}")


def _is_day(node: exp.Expr) -> bool:
    """Columns and what is computed of them have a time of day, too."""
    return isinstance(node, exp.Cast | exp.TryCast) and node.args["to"].this == exp.DType.DATE


def _no_dates(texts: list[str], kind: exp.DType) -> list[str]:
    """As DuckDB has it, which knows more ways to write one than a pattern would. All at once: a list may be long."""
    if not texts:
        return []
    to = "DATE" if kind == exp.DType.DATE else "TIMESTAMP"
    with connection() as opened:
        found = opened.execute(f"SELECT TRY_CAST(UNNEST(?) AS {to}) IS NULL", [texts]).fetchall()
    return [text for text, (none,) in zip(texts, found, strict=True) if none]
