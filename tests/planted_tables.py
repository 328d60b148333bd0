"""Rows among which one person stands out, and what analysts are told who ask for that one."""

from typing import Any

import pyarrow as arrow

from join_tables import join_answer, pooled_tables
from query_tables import DECLARATION, answer_of, divided, pooled_rows
from winnow.analytics.permissions import PERMISSIONS
from winnow.analytics.program import run_plain
from winnow.analytics.question import QueryTerms, merge_terms, read_question
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import WinnowError

COUNT = 400
PERSON = 7
"""The only one who is 110 years old; row 9 alone has no cost."""


def planted_rows() -> arrow.Table:
    rows = pooled_rows(COUNT, seed=1, missing=0.0).to_pydict()
    rows["age"] = [min(each, 100) for each in rows["age"]]
    rows["patient"] = [f"p{place}" for place in range(COUNT)]
    rows["well"] = [False] * COUNT
    rows["age"][PERSON], rows["well"][PERSON], rows["cost"][9] = 110, True, None
    return arrow.table(rows)


ROWS = planted_rows()
TABLES = divided(ROWS, 3, seed=0)
PLAIN_ROWS = pooled_rows(400, seed=1, missing=0.0)
PLAIN_TABLES = divided(PLAIN_ROWS, 3, seed=0)
ORDERS = pooled_tables(300, seed=1, missing=0)
MANY = 2_000


def answer_or_refusal(sql: str) -> Any:
    try:
        return answer_of(sql, TABLES)["rows"]
    except WinnowError as error:
        return str(error)


def hides_the_person(number: str, rows: str, refusal: str = "one row") -> bool:
    """Whether a number about rows to which a trick adds one person is NULL, or refused in these words."""
    told = answer_or_refusal(f"SELECT {number} AS told FROM {rows}")
    return told == [{"told": None}] or refusal in told


def answer_of_two(sql: str, minimum: int = 10) -> dict[str, Any]:
    """Where owners have a second table, `visits`, of the same form."""
    question = read_question({"kind": "query", "sql": sql})
    terms = QueryTerms(declaration=DECLARATION, beside={"visits": DECLARATION}, allow=("aggregate",), minimum=minimum)
    merged = merge_terms(question, {f"owner {place}": terms for place in range(len(TABLES))})
    tables = [OwnerTable(each.declaration, each.rows, beside={"visits": each}) for each in TABLES]
    return dict(run_plain(lambda: question.program(merged), tables))


def answer_of_copies(sql: str, minimum: int = 10, *, replicated: bool = False) -> dict[str, Any]:
    """Where one owner has 2,000 places that all others learn, or every owner has them."""
    places = arrow.table({"number": list(range(MANY))})
    declared = TableDeclaration.model_validate(
        {"columns": {"number": {"level": "public", "type": "integer"}}, "replicated": replicated}
    )
    question = read_question({"kind": "query", "sql": sql})
    own = {"beside": {"places": declared}} if replicated else {}
    first = question.table
    terms = QueryTerms(
        declaration=DECLARATION, table="" if first == "stays" else "stays", allow=PERMISSIONS, minimum=minimum, **own
    )
    tables = [OwnerTable(each.declaration, each.rows) for each in TABLES]
    given = {f"owner {number}": terms for number in range(len(tables))}
    if replicated:
        beside = {"places": OwnerTable(declared, places)}
        tables = [OwnerTable(each.declaration, each.rows, beside=beside) for each in TABLES]
    else:
        tables.append(OwnerTable(declared, places))
        table = "" if first == "places" else "places"
        given["agency"] = QueryTerms(declaration=declared, table=table, allow=PERMISSIONS, minimum=minimum)
    merged = merge_terms(question, given)
    return dict(run_plain(lambda: question.program(merged), tables))


def within_owners(sql: str) -> Any:
    try:
        answer = join_answer(sql, ORDERS, 3)
    except WinnowError as error:
        return str(error)
    return answer["rows"], answer["left_out"]
