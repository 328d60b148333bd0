"""`winnow query`: a statement of SQL as a question."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from winnow.analytics.permissions import Permission
from winnow.analytics.question import MAX_TABLES, Answer, MergedTerms, Question
from winnow.core import ConfigError
from winnow.core.installed_package import install_command

if TYPE_CHECKING:
    from winnow.analytics.program import Program

MAX_SQL = 20_000


class QueryQuestion(Question):
    """Owners derive everything from the statement. Its table is the one in FROM, and need not be named."""

    kind: Literal["query"] = "query"
    sql: str = Field(min_length=1, max_length=MAX_SQL)

    @model_validator(mode="before")
    @classmethod
    def _with_table(cls, given: Any) -> Any:
        if isinstance(given, dict) and "table" not in given and isinstance(given.get("sql"), str):
            return {**given, "table": _tables(given["sql"][:MAX_SQL])[0]}
        return given

    @model_validator(mode="after")
    def _consistent(self) -> "QueryQuestion":
        if self.tables[0].lower() != self.table.lower():
            raise ValueError(f"table = {self.table!r}, and the statement reads {self.tables[0]!r} first")
        return self

    @property
    def tables(self) -> tuple[str, ...]:
        return _tables(self.sql)

    def needs(self) -> frozenset[Permission]:
        return _needs(self.sql)

    def program(self, terms: MergedTerms) -> "Program[Answer]":
        from winnow.analytics.sql.exact_query import exact_query  # noqa: PLC0415 - agents run no program
        from winnow.analytics.sql.explain_query import explain_query  # noqa: PLC0415
        from winnow.analytics.sql.noisy_query import noisy_query  # noqa: PLC0415
        from winnow.analytics.sql.plan_query import make_query_plan  # noqa: PLC0415

        check_holders(self, terms)
        plan = make_query_plan(self.sql, terms.tables(self.tables))
        if self.epsilon is None:
            told = yield from exact_query(plan, terms)
        else:
            told = yield from noisy_query(plan, terms, self.rho(terms))
            told |= {"epsilon": self.epsilon, "delta": self.delta}
        return {
            "kind": self.kind,
            "table": self.table,
            "sql": self.sql,
            "owners": list(terms.owners),
            "minimum": terms.minimum,
            "columns": list(plan.columns),
            **told,
            "plan": explain_query(plan, len(terms.owners), terms.minimum, self.epsilon),
        }


def explained(question: Question, terms: MergedTerms) -> list[str]:
    """What a statement would make its owners do, and who would learn what."""
    from winnow.analytics.sql.explain_query import explain_query  # noqa: PLC0415
    from winnow.analytics.sql.plan_query import make_query_plan  # noqa: PLC0415

    assert isinstance(question, QueryQuestion)
    check_holders(question, terms)
    plan = make_query_plan(question.sql, terms.tables(question.tables))
    return explain_query(plan, len(terms.owners), terms.minimum, question.epsilon)


def _tables(sql: str) -> tuple[str, ...]:
    try:
        from winnow.analytics.sql.parse_sql import tables_of  # noqa: PLC0415 - who only reads questions loads no parser
    except ImportError:
        raise ConfigError(f"SQL needs the package sqlglot: {install_command('query')}") from None
    tables = tables_of(sql)
    if not 0 < len(tables) <= MAX_TABLES:
        raise ConfigError(f"the statement reads {len(tables) or 'no'} tables; it can read 1 to {MAX_TABLES}")
    return tables


@lru_cache(maxsize=64)
def _needs(sql: str) -> frozenset[Permission]:
    from sqlglot import exp  # noqa: PLC0415

    from winnow.analytics.sql.parse_sql import parse_sql  # noqa: PLC0415

    extremes = parse_sql(sql).find(exp.Min, exp.Max) is not None
    return frozenset({"aggregate", "extremes"} if extremes else {"aggregate"})


def check_holders(question: Question, terms: MergedTerms) -> None:
    """Every owner must have all tables."""
    for table in question.tables:
        lacking = [owner for owner in terms.owners if owner not in terms.holders[table]]
        if lacking:
            raise ConfigError(f"{lacking[0]} has no table {table!r}")
