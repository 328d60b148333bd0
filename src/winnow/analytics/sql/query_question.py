"""`winnow query`: a statement of SQL as a question."""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from winnow.analytics.permissions import Permission
from winnow.analytics.question import MAX_TABLES, Answer, MergedTerms, Question
from winnow.core import ConfigError
from winnow.core.installed_package import install_command

if TYPE_CHECKING:
    from winnow.analytics.program import Program
    from winnow.analytics.sql.query_plan import QueryPlan
    from winnow.analytics.sql.told_tables import ToldTable

MAX_SQL = 20_000


class QueryQuestion(Question):
    """Owners derive everything from the statement. Its table is the one in FROM, and need not be named."""

    kind: Literal["query"] = "query"
    sql: str = Field(min_length=1, max_length=MAX_SQL)
    explain: bool = False
    """Whether owners tell their terms alone, from which its author learns what the statement would make them do."""

    @model_validator(mode="before")
    @classmethod
    def _with_table(cls, given: Any) -> Any:
        if isinstance(given, dict) and "table" not in given and isinstance(given.get("sql"), str):
            return {**given, "table": _tables(given["sql"][:MAX_SQL])[0]}
        return given

    @model_validator(mode="after")
    def _consistent(self) -> "QueryQuestion":
        if self.tables[0] != self.table:  # owners take rows of the one, and book what they cost under the other
            raise ValueError(f"table = {self.table!r}, and the statement reads {self.tables[0]!r} first")
        return self

    @property
    def tables(self) -> tuple[str, ...]:
        return _tables(self.sql)

    def needs(self) -> frozenset[Permission]:
        return _needs(self.sql)

    def shows_rows(self) -> bool:
        return _shows_rows(self.sql)

    def explained(self, terms: MergedTerms) -> list[str]:
        """What the statement makes the parties do, and who learns what."""
        from winnow.analytics.sql.explain_matched_query import explain_matched_query  # noqa: PLC0415
        from winnow.analytics.sql.explain_query import explain_query  # noqa: PLC0415 - agents explain nothing
        from winnow.analytics.sql.explain_rows import explain_rows  # noqa: PLC0415
        from winnow.analytics.sql.plan_rows import make_rows_plan  # noqa: PLC0415

        if self.shows_rows():
            return explain_rows(make_rows_plan(self.sql, self.table, terms.declaration), terms)
        plan, told = self._planned(terms)
        if plan.sides is not None:
            return explain_matched_query(plan, terms)
        noise = None if self.epsilon is None else (self.epsilon, self.delta)
        return explain_query(plan, len(terms.owners), terms.minimum, noise, told)

    def _planned(self, terms: MergedTerms) -> "tuple[QueryPlan, tuple[ToldTable, ...]]":
        """The plan, and the tables that are told to all parties before."""
        from winnow.analytics.sql.check_minimum import check_minimum  # noqa: PLC0415 - agents run no program
        from winnow.analytics.sql.plan_query import make_query_plan  # noqa: PLC0415
        from winnow.analytics.sql.told_tables import told_tables, told_terms  # noqa: PLC0415

        told = told_tables(self, self.sql, terms)
        if told:
            tables = told_terms(terms, self.tables, told).tables(self.tables)
            plan = make_query_plan(self.sql, tables, told=[each.name for each in told])
        else:
            plan = make_query_plan(self.sql, terms.tables(self.tables), apart=held_apart(self, terms))
        check_minimum(plan, terms.minimum, noisy=self.epsilon is not None)
        return plan, told

    def program(self, terms: MergedTerms) -> "Program[Answer]":
        from winnow.analytics.sql.told_tables import told_terms, with_told_tables  # noqa: PLC0415

        if self.explain:
            if not self.shows_rows():
                self._planned(terms)
            return self._answer(terms, (), {"rows": [], "costs": self._likely_costs(terms)})
        if self.shows_rows():
            return (yield from self._rows_program(terms))
        plan, told = self._planned(terms)
        if plan.sides is not None:
            found = yield from self._matched_program(plan, terms)
        elif told:
            known = told_terms(terms, self.tables, told)
            found = yield from with_told_tables(self._own_program(plan, known), known, told)
        else:
            found = yield from self._own_program(plan, terms)
        return self._answer(terms, plan.columns, found)

    def _own_program(self, plan: "QueryPlan", terms: MergedTerms) -> "Program[dict[str, Any]]":
        """Of rows that every owner selects by itself."""
        from winnow.analytics.sql.exact_query import exact_query  # noqa: PLC0415 - agents run no program
        from winnow.analytics.sql.noisy_query import noisy_query  # noqa: PLC0415

        if self.epsilon is None:
            return (yield from exact_query(plan, terms))
        noisy = yield from noisy_query(plan, terms, self.rho(terms))
        return {**noisy, "epsilon": self.epsilon, "delta": self.delta}

    def _matched_program(self, plan: "QueryPlan", terms: MergedTerms) -> "Program[dict[str, Any]]":
        from winnow.analytics.sql.matched_query import matched_query  # noqa: PLC0415 - agents run no program
        from winnow.analytics.sql.matched_size import counts_alone, matched_size  # noqa: PLC0415

        if self.epsilon is not None:
            raise ConfigError("a join between owners cannot be told with noise; leave epsilon out")
        if terms.forbid_match is not None:
            raise ConfigError(f"{terms.forbid_match} forbids match, which a join between owners needs")
        if counts_alone(plan):
            told = yield from matched_size(plan, terms)
            if told is not None:
                return told
        if terms.sizes_only is not None:
            raise ConfigError(
                f"{terms.sizes_only} tells only how many rows are joined: ask for COUNT(*) alone, without conditions "
                "and GROUP BY, of rows that each have a key of their own"
            )
        return (yield from matched_query(plan, terms))

    def _rows_program(self, terms: MergedTerms) -> "Program[Answer]":
        from winnow.analytics.sql.plan_rows import make_rows_plan  # noqa: PLC0415 - agents run no program
        from winnow.analytics.sql.rows_query import rows_query  # noqa: PLC0415

        if len(self.tables) > 1:
            raise ConfigError("rows of several tables cannot be shown; ask for aggregates, or for rows of one table")
        if self.epsilon is not None:
            raise ConfigError("rows cannot be shown with noise; leave epsilon out, or ask for aggregates")
        plan = make_rows_plan(self.sql, self.table, terms.declaration)
        told = yield from rows_query(plan, terms, bytes.fromhex(self.reader or ""))
        return self._answer(terms, plan.columns, told)

    def _answer(self, terms: MergedTerms, columns: Sequence[str], told: dict[str, Any]) -> Answer:
        return {
            "kind": self.kind,
            "table": self.table,
            "sql": self.sql,
            "owners": list(terms.owners),
            "minimum": terms.minimum,
            "columns": list(columns),
            **told,
            "plan": self.explained(terms),
        }

    def _likely_costs(self, terms: MergedTerms) -> str:
        from winnow.analytics.explain_question import likely_steps  # noqa: PLC0415
        from winnow.analytics.step_costs import explained_costs  # noqa: PLC0415

        steps, complete = likely_steps(self.model_copy(update={"explain": False}), terms)
        return explained_costs(steps, len(terms.owners), complete=complete, deployed=True)


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

    from winnow.analytics.sql.parse_sql import order_of, parse_sql  # noqa: PLC0415
    from winnow.analytics.sql.spatial_functions import is_spatial  # noqa: PLC0415

    tree, needed = parse_sql(sql), set[Permission]({"aggregate"})
    if tree.find(exp.Distinct):
        needed.add("match")
    sample = tree.find(exp.TableSample)
    if sample is not None and sample.args.get("method") and sample.args["method"].name.upper() == "SYSTEM":
        needed.add("per-owner")  # its error tells how owners differ
    if tree.find(exp.Min, exp.Max):
        needed.add("extremes")
    for select in tree.find_all(exp.Select):
        spatial = [is_spatial(each.this) for each in order_of(select)]
        if any(spatial):
            needed.add("nearest")
        if select.args.get("limit") and select is not tree and not (spatial and all(spatial)):
            needed.add("extremes")  # one key by distance does not make the first rows by another the nearest ones
    return frozenset(needed)


@lru_cache(maxsize=64)
def _shows_rows(sql: str) -> bool:
    from winnow.analytics.sql.parse_sql import parse_sql, shows_rows  # noqa: PLC0415

    return shows_rows(parse_sql(sql))


def held_apart(question: Question, terms: MergedTerms) -> bool:
    """Whether two owners have tables that are joined; else every owner has all of them, or a ConfigError says so."""
    divided = [name for name, each in terms.tables(question.tables).items() if not each.replicated]
    lacking = [(owner, name) for name in question.tables for owner in terms.owners if owner not in terms.holders[name]]
    if not lacking:
        return False
    owner, table = lacking[0]
    if len(terms.owners) != 2 or any(len(terms.holders[name]) != 1 for name in divided) or len(divided) < 2:
        raise ConfigError(
            f"{owner} has no table {table!r}; every owner has all tables, or of two owners each has one that is "
            "joined: --owners A,B chooses two"
        )
    return True
