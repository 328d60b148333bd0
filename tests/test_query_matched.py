"""Joins between two owners on a key: what they answer is what DuckDB says of both tables, and liars are found out."""

import gc
import weakref
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
import sqlglot
from sqlglot import exp

from matched_tables import matched_answer, owners_of, pooled_join, pooled_rows, random_matched_join
from statistics_tables import recorded
from test_query import agree, by_key, plain
from winnow.analytics.program import Match, run_plain
from winnow.analytics.question import merge_terms, read_question
from winnow.analytics.simulate import SimulatedOwners, ask_owners
from winnow.analytics.site import AnalysisSite
from winnow.analytics.sql.matched_join import MatchedJoin
from winnow.analytics.sql.matched_rows import _identifiers
from winnow.analytics.sql.plan_query import make_query_plan
from winnow.analytics.workflow import AnalysisWorkflow
from winnow.core import ConfigError, RoundFinished

POOLED = pooled_rows(300, seed=3)
HALF_STEP = 5000 / 131_072 / 2
"""Of the widest range: MIN and MAX of numbers that are not whole are told to half a step of their range."""


def check_against_duckdb(sql: str, answer: dict[str, Any]) -> None:
    expected = [tuple(map(plain, row)) for row in pooled_join(sql, POOLED)]
    told = [tuple(row.values()) for row in answer["rows"]]
    keys = sum(name.startswith("key") for name in answer["columns"])
    assert len(told) == len(expected), sql
    selected = sqlglot.parse_one(sql, read="duckdb").expressions
    across = {each.alias for each in selected if isinstance(each.unalias(), exp.Corr)}
    ordered = {each.alias for each in selected if each.find(exp.Min, exp.Max)}
    deviations = {each.alias for each in selected if each.find(exp.StddevPop, exp.StddevSamp, exp.Stddev)}
    for own, other in zip(by_key(told, keys), by_key(expected, keys), strict=True):
        for name, one, two in zip(answer["columns"], own, other, strict=True):
            # Σuv is a product of fractions of 25 bits: in a small group with little spread its rounding shows
            near = name in across and None not in (one, two) and abs(one - two) < 2e-5
            near |= name in ordered and isinstance(two, float) and abs(one - two) <= HALF_STEP
            near |= name in deviations and None not in (one, two) and abs(one**2 - two**2) < 1e-6  # as variances are
            assert near or agree(one, two, name, searched=False), (sql, name, one, two)


@pytest.mark.parametrize("seed", range(14))
def test_random_joins_between_owners_are_answered_as_by_duckdb(seed: int) -> None:
    sql = random_matched_join(np.random.default_rng(seed))
    check_against_duckdb(sql, matched_answer(sql, POOLED, minimum=1))


@pytest.mark.slow(part="science")
def test_two_hundred_random_joins_between_owners_are_answered_as_by_duckdb() -> None:
    for seed in range(100, 300):
        sql = random_matched_join(np.random.default_rng(seed))
        check_against_duckdb(sql, matched_answer(sql, POOLED, minimum=1))


def test_the_smallest_and_largest_of_joined_rows_are_found_in_shares() -> None:
    """Conditions of the one owner decide over rows of the other, and nobody learns which."""
    sql = (
        "SELECT kind AS key0, MIN(cost) AS n0, MAX(age) FILTER (WHERE paid) AS n1, COUNT(*) AS n2, MAX(rate) AS n3 "
        "FROM patients JOIN claims ON pid = person WHERE outcome = 'moved' GROUP BY 1"
    )
    check_against_duckdb(sql, ask_both(sql, minimum=1))
    with pytest.raises(ConfigError, match="hospital forbids extremes"):
        ask_both(sql, allow=("aggregate", "match"))
    private = sql.replace("outcome = 'moved'", "secret = 'x'")
    answer = ask_both(private)
    assert answer["rows"]
    assert all(row["n0"] is row["n1"] is None for row in answer["rows"])


@pytest.mark.slow(part="science")
def test_forty_random_joins_in_shares_are_what_owners_without_shares_tell() -> None:
    """Some are refused with a minimum, and do not count."""
    answered = 0
    for seed in count(400):
        sql = random_matched_join(np.random.default_rng(seed))
        try:
            alone = matched_answer(sql, POOLED, minimum=5)
        except ConfigError as error:
            assert "could" in str(error)  # noqa: PT017 - tell a single row, or leave one
            continue
        assert ask_both(sql, minimum=5) == alone, sql
        answered += 1
        if answered == 40:
            return


SHARED = (
    "SELECT outcome AS key0, kind AS key1, COUNT(*) AS n0, AVG(cost) AS n1, CORR(dose, rate) AS n2, SUM(age) FILTER "
    "(WHERE paid AND age > 30) AS n3 FROM patients JOIN claims ON pid = person WHERE cost > 50 GROUP BY 1, 2"
)


def ask_both(sql: str, minimum: int = 10, **other: Any) -> dict[str, Any]:
    question = read_question({"kind": "query", "sql": sql})
    tables, terms = owners_of(question, POOLED, minimum, **other)
    return ask_owners(question, tables, terms)


def test_owners_who_compute_in_shares_give_the_same_answer() -> None:
    answer = ask_both(SHARED)
    assert answer == matched_answer(SHARED, POOLED)
    assert answer["left_out"]
    check_against_duckdb(SHARED, ask_both(SHARED, minimum=1))


def told_and_opened(sql: str, minimum: int) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    question = read_question({"kind": "query", "sql": sql})
    tables, terms = owners_of(question, POOLED, minimum)
    opened: list[tuple[str, Any]] = []
    merged = merge_terms(question, terms)
    return run_plain(lambda: recorded(question.program(merged), opened), list(tables.values())), opened


def people(condition: str, group: str) -> dict[Any, int]:
    """How many different keys are behind each group."""
    rows = pooled_join(
        f"SELECT {group}, COUNT(DISTINCT pid) FROM patients JOIN claims ON pid = person WHERE {condition} GROUP BY ALL",
        POOLED,
    )
    return {tuple(row[:-1]): row[-1] for row in rows}


@pytest.mark.parametrize("minimum", [1, 5, 10, 25])
def test_groups_with_fewer_identifiers_than_the_minimum_are_not_opened(minimum: int) -> None:
    """Rows do not count: a patient with many claims is one."""
    sql = "SELECT outcome, kind, COUNT(*) AS n, SUM(cost) AS s FROM patients JOIN claims ON pid = person GROUP BY 1, 2"
    answer, opened = told_and_opened(sql, minimum)
    enough = {group for group, count in people("TRUE", "outcome, kind").items() if count >= minimum}
    assert {(row["outcome"], row["kind"]) for row in answer["rows"]} == enough
    assert answer["left_out"] == len(people("TRUE", "outcome, kind")) - len(enough)
    (sums,) = [values for label, values in opened if label == "sums"]
    # rows, rows with a cost, and its sum: nothing of other groups, and of a hidden sum nothing
    assert len(sums) == 3 * len(enough) - 2 * answer["hidden_values"]


@pytest.mark.parametrize("condition", ["age > 104", "cost > 4900", "age > 60 AND cost > 4500", "age > 1", "cost >= 30"])
def test_conditions_choose_parts_that_are_empty_or_large_enough(condition: str) -> None:
    """Neither those that are chosen, nor those that a difference of two numbers would show."""
    sql = f"SELECT COUNT(*) AS n, SUM(cost) FILTER (WHERE {condition}) AS s FROM patients JOIN claims ON pid = person"
    answer, _ = told_and_opened(sql, minimum=10)
    parts = [people(part, "1").get((1,), 0) for each in condition.split(" AND ") for part in (each, f"NOT ({each})")]
    told = answer["rows"][0]["s"] is not None
    if told:
        assert all(count == 0 or count >= 10 for count in parts)
    assert answer["hidden_values"] == (not told)


def test_what_no_group_has_enough_of_is_not_opened() -> None:
    answer, opened = told_and_opened("SELECT SUM(cost) AS s FROM patients JOIN claims ON pid = person", 10_000)
    assert (answer["rows"], answer["left_out"]) == ([], 1)
    assert [(label, list(values)) for label, values in opened] == [("identifiers that both owners have", [0, 0])]


def test_a_count_alone_tells_nobody_which_identifiers_are_common() -> None:
    """Where each stands once; otherwise owners say so and match them, unless one tells sizes only."""
    _, first = np.unique(POOLED["claims"].column("person").fill_null(-1).to_numpy(), return_index=True)
    once = {"patients": POOLED["patients"].slice(0, 300), "claims": POOLED["claims"].take(first)}
    sql = "SELECT COUNT(*) AS n FROM patients JOIN claims ON pid = person"
    question = read_question({"kind": "query", "sql": sql})
    tables, terms = owners_of(question, once, 3, reveal="size")
    learnt: list[str] = []
    answer = ask_owners(question, tables, terms, on_match=lambda owner, identifiers: learnt.append(owner))
    assert answer["rows"] == [{"n": pooled_join(sql, once)[0][0]}]
    assert not learnt
    with pytest.raises(ConfigError, match="hospital tells only how many rows are joined: ask for COUNT"):
        ask_both(sql, reveal="size")
    assert ask_both(sql)["rows"] == [{"n": pooled_join(sql, POOLED)[0][0]}]
    for other in ("AVG(cost)", "COUNT(*), COUNT(age)", "COUNT(*) FILTER (WHERE paid)"):
        with pytest.raises(ConfigError, match="tells only how many rows are joined"):
            ask_both(sql.replace("COUNT(*)", other), reveal="size")


def matched_lists(sql: str, pooled: dict[str, Any]) -> tuple[list[Any], list[list[str]]]:
    """What is told, and the identifiers that owners put into set intersections."""
    question = read_question({"kind": "query", "sql": sql})
    tables, terms = owners_of(question, pooled, 10)
    merged, lists = merge_terms(question, terms), list[list[str]]()

    def noted(program: Any) -> Any:
        step = next(program)
        while True:
            if isinstance(step, Match):
                lists.extend(step.local(replace(each, place=place)) for place, each in enumerate(tables.values()))
            try:
                step = program.send((yield step))
            except StopIteration as stop:
                return stop.value

    return run_plain(lambda: noted(question.program(merged)), list(tables.values()))["rows"], lists


@pytest.mark.parametrize("condition", ["person = 6 AND cost > 10", "cost > 10", "age > 20"])
def test_no_owner_is_told_how_many_a_condition_chooses(condition: str) -> None:
    """The owner that asks in a set intersection has the size before anybody compares it with the minimum."""
    _, first = np.unique(POOLED["claims"].column("person").fill_null(-1).to_numpy(), return_index=True)
    once = {"patients": POOLED["patients"].slice(0, 300), "claims": POOLED["claims"].take(first)}
    everybody = "SELECT COUNT(*) AS n FROM patients JOIN claims ON pid = person"
    told, all_lists = matched_lists(everybody, once)
    assert told == [{"n": pooled_join(everybody, once)[0][0]}]
    of_claims = f"(SELECT * FROM claims WHERE {condition}) c"
    subquery = f"SELECT COUNT(*) AS n FROM patients JOIN {of_claims} ON pid = c.person"
    for sql in (f"{everybody} WHERE {condition}", *([] if "age" in condition else [subquery])):
        with pytest.raises(ConfigError, match="tells only how many rows are joined"):
            matched_answer(sql, once, reveal="size")
        told, lists = matched_lists(sql, once)
        ((chosen,),) = pooled_join(sql, once)
        assert told == ([{"n": chosen}] if chosen >= 10 else [])
        assert lists == all_lists


JOIN = "FROM patients p JOIN claims c ON p.pid = c.person"
REFUSED = [
    ("SELECT COUNT(*)\nFROM patients p LEFT JOIN claims c ON p.pid = c.person", "LEFT JOIN between owners .*line 2"),
    ("SELECT COUNT(*) FROM patients p RIGHT JOIN claims c ON p.pid = c.person", "RIGHT JOIN is not supported"),
    ("SELECT COUNT(*) FROM patients p FULL JOIN claims c ON p.pid = c.person", "FULL JOIN is not supported"),
    (
        "SELECT COUNT(*) FROM patients CROSS JOIN claims",
        "needs a key or a distance; write ON a.key = b.key, or ON DWITHIN",
    ),
    ("SELECT COUNT(*) FROM patients p JOIN claims c ON p.age = c.person AND p.age < c.cost", "at two owners"),
    ("SELECT COUNT(*) FROM patients p JOIN claims c ON p.secret = c.region", "'secret' is private; declare key = true"),
    ("SELECT COUNT(*) FROM patients p JOIN claims c ON p.pid = c.kind", "compares integer with text"),
    (f"SELECT SUM(age * cost) {JOIN}", "its columns are at two owners"),
    (f"SELECT SUM(age) {JOIN} GROUP BY age > cost", "its columns are at two owners"),
    (f"SELECT SUM(CASE WHEN paid THEN age END) {JOIN}", "its columns are at two owners"),
    (f"SELECT COUNT(DISTINCT pid) {JOIN}", r"COUNT\(DISTINCT …\) of a join between owners is not"),
    (
        f"SELECT MEDIAN(cost) {JOIN}",
        "MEDIAN of a join between owners .*: one row may be joined with many",
    ),
    (f"SELECT secret, COUNT(*) {JOIN} GROUP BY 1", "'secret' is private"),
    (f"SELECT SUM(pid) {JOIN}", "'pid' is private"),
    (f"SELECT COUNT(*) {JOIN} WHERE EXISTS (SELECT * FROM regions r WHERE r.region = c.region)", "a subquery in the"),
    (
        "SELECT COUNT(*) FROM patients p JOIN claims c ON pid = c.person JOIN claims d ON d.person = pid",
        "has two sides",
    ),
    ("SELECT COUNT(*) FROM patients p JOIN patients q ON p.pid = q.pid JOIN claims ON p.pid = person", "has two sides"),
    ("SELECT COUNT(*) FROM patients TABLESAMPLE BERNOULLI(10 PERCENT) JOIN claims ON pid = person", "TABLESAMPLE"),
    (f"SELECT age, cost {JOIN}", "rows of several tables cannot be shown"),
]


@pytest.mark.parametrize(("sql", "reason"), REFUSED)
def test_what_owners_cannot_join_is_refused_by_name(sql: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        matched_answer(sql, POOLED, rows=5)


def test_owners_forbid_joins() -> None:
    with pytest.raises(ConfigError, match="hospital forbids match, which a join between owners needs"):
        matched_answer(SHARED, POOLED, allow=("aggregate",))
    question = read_question({"kind": "query", "sql": SHARED, "epsilon": 1.0})
    tables, terms = owners_of(question, POOLED, 10)
    with pytest.raises(ConfigError, match="cannot be told with noise"):
        run_plain(lambda: question.program(merge_terms(question, terms)), list(tables.values()))


def test_explain_says_who_learns_which_identifiers() -> None:
    question = read_question({"kind": "query", "sql": SHARED})
    _, terms = owners_of(question, POOLED, 10)
    lines = "\n".join(question.explained(merge_terms(question, terms)))  # type: ignore[attr-defined]
    assert "hospital, insurer: which identifiers both have" in lines
    assert "at hospital" in lines
    assert "whatever WHERE says" in lines


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_an_interrupted_join_goes_on_where_it_was(steps: int) -> None:
    """Owners keep the identifiers that they found: rows are aligned by them."""
    question = read_question({"kind": "query", "sql": SHARED})
    tables, terms = owners_of(question, POOLED, 10)
    first = SimulatedOwners(question, tables, terms)
    interrupted = AnalysisWorkflow(question, first.names)
    finished = (event for event in interrupted.run(first.federation()) if isinstance(event, RoundFinished))
    for _ in range(steps):
        next(finished)
    snapshot = interrupted.snapshot()
    again = SimulatedOwners(question, tables, terms)
    workflow = AnalysisWorkflow(question, again.names)
    workflow.restore(snapshot)
    for _ in workflow.run(again.federation(after=snapshot)):
        pass
    assert workflow.answer == matched_answer(SHARED, POOLED)


class _Signs:
    def sign_once(self, party: int, message: bytes, ballot: bytes) -> bytes:
        return b""


def test_a_helper_is_the_third_party_of_products() -> None:
    question = read_question({"kind": "query", "sql": SHARED})
    tables, terms = owners_of(question, POOLED, 10)
    parties = SimulatedOwners(question, tables, terms)
    helper = AnalysisSite(
        question, None, None, client=2, noise_seed=b"", submission="", book=lambda: None, identities=_Signs()
    )
    parties.sites.append(helper)
    parties.names.append("institute")
    workflow = AnalysisWorkflow(question, parties.names)
    for _ in workflow.run(parties.federation()):
        pass
    assert workflow.answer == matched_answer(SHARED, POOLED)


def test_parts_of_a_key_are_not_mistaken_for_one_another() -> None:
    keys = arrow.table({"key0": ["a\x1fb", "a", "a", '["a'], "key1": ["c", "b\x1fc", None, 'c"]']})
    found = _identifiers(keys)
    assert found[2] is None
    assert len({*found}) == 4


def test_a_side_keeps_what_it_found_in_one_table_alone() -> None:
    question = read_question(
        {"kind": "query", "sql": "SELECT COUNT(*) AS n FROM patients p JOIN claims c ON pid = person"}
    )
    tables, terms = owners_of(question, POOLED, 10)
    merged = merge_terms(question, terms)
    plan = make_query_plan(question.sql, merged.tables(question.tables), apart=True)
    own, side = tables["hospital"], MatchedJoin(plan=plan, terms=merged).sides[0]
    other = replace(own, rows=own.rows.slice(0, 30))
    every, seen = side.identifiers(own), weakref.ref(other.rows)
    assert set(side.identifiers(other)) < set(every)
    del other
    assert side.identifiers(own) == every
    gc.collect()
    assert seen() is None
