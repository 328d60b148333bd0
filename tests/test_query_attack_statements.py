"""Statements that told one person's value, or something of a person whom they name, and now tell nothing.

Every one of them was an attack that worked.
"""

from typing import Any

import numpy as np
import pyarrow as arrow
import pytest

from matched_tables import owners_of
from planted_tables import TABLES, answer_of_copies, answer_or_refusal, hides_the_person, within_owners
from query_tables import answer_of, terms_of
from statistics_tables import recorded
from winnow.analytics.program import run_plain
from winnow.analytics.question import merge_terms, read_question
from winnow.analytics.simulate import ask_owners
from winnow.analytics.sql import public_values
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import WinnowError

PEOPLE = 300
KELVIN = "\u212a"
"""A letter that Python writes small as k, and DuckDB does not."""


def claims_of_people() -> dict[str, arrow.Table]:
    """Everybody has one claim, person 7 two; the second is the dearest of all."""
    rng = np.random.default_rng(1)
    return {
        "patients": arrow.table(
            {
                "pid": np.arange(PEOPLE),
                "age": rng.integers(0, 100, PEOPLE),
                "dose": rng.uniform(-5, 20, PEOPLE),
                "ward": rng.choice(["north", "south"], PEOPLE),
                "outcome": rng.choice(["home", "moved"], PEOPLE),
                "secret": ["x"] * PEOPLE,
            }
        ),
        "claims": arrow.table(
            {
                "person": [*range(PEOPLE), 7],
                "cost": np.array([*rng.integers(0, 4000, PEOPLE), 4900]),
                "rate": rng.uniform(0, 1, PEOPLE + 1),
                "kind": rng.choice(["drug", "stay"], PEOPLE + 1),
                "region": rng.choice(["east", "west"], PEOPLE + 1),
                "paid": rng.random(PEOPLE + 1) < 0.5,
            }
        ),
        "regions": arrow.table({"region": ["east", "west"], "coast": ["yes", "no"]}),
    }


CLAIMS = claims_of_people()


def between_owners(sql: str, **terms: Any) -> tuple[Any, list[Any]]:
    """What the analyst is told, or refused by, and all that the parties saw opened."""
    opened = list[tuple[str, Any]]()
    try:
        question = read_question({"kind": "query", "sql": sql})
        tables, given = owners_of(question, CLAIMS, 10, **terms)
        merged = merge_terms(question, given)
        answer = run_plain(lambda: recorded(question.program(merged), opened), list(tables.values()))
    except WinnowError as error:
        return str(error), []
    return (answer["rows"], answer["left_out"]), [(label, np.asarray(each).tolist()) for label, each in opened]


@pytest.mark.parametrize("replicated", [True, False])
def test_rows_that_count_twice_are_not_opened_bit_by_bit(replicated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of overlapping groups was named by all conditions that hold in it: with enough of them, by its record."""
    opened, read = list[bytes](), public_values._group
    monkeypatch.setattr(public_values, "_group", lambda text: (opened.append(text), read(text))[1])
    bits = ", ".join(f"COUNT(*) FILTER (WHERE age // {2**bit} % 2 = 1) AS b{bit}" for bit in range(7))
    answer = answer_of_copies(
        f"SELECT COUNT(*) AS n, {bits} FROM stays JOIN places ON number < 2 AND age > 0", replicated=replicated
    )
    assert len(answer["rows"]) <= 1
    assert all(b"x" not in text for text in opened)  # only the places themselves, by their numbers


@pytest.mark.parametrize("chosen", ["c.person = 7", "c.cost = 4900"])
def test_a_subquery_does_not_count_one_row_often(chosen: str) -> None:
    joins = " ".join(f"JOIN regions r{place} ON r{place}.region = 'east' OR {chosen}" for place in range(12))
    rows = f"(SELECT c.person, c.cost FROM claims c {joins} WHERE c.person < 20) c"
    told, _ = between_owners(f"SELECT COUNT(*) AS n, SUM(age) AS s FROM patients JOIN {rows} ON pid = c.person")
    assert "could count one row often" in told or "a condition of its own" in told


@pytest.mark.parametrize("chosen", ["o.okey = 8", "o.total = 260"])
@pytest.mark.parametrize(
    "rows",
    [
        "orders o JOIN items i ON o.okey = i.okey {0}",
        "orders o {0}",
        "(SELECT o.okey, o.total FROM orders o {0}) u",
        "(SELECT * FROM (SELECT o.okey, o.total FROM orders o {0}) v) u",
    ],
)
def test_no_unit_is_weighed_by_tables_that_all_owners_have(rows: str, chosen: str) -> None:
    joins = " ".join(f"JOIN nations n{place} ON n{place}.nation = 'nation 0' OR {chosen}" for place in range(4))
    told = within_owners(f"SELECT COUNT(*) AS n, SUM(total) AS s FROM {rows.format(joins)} WHERE total < 9999")
    assert told[0] == [] or "often" in told or "a condition of its own" in told


def test_no_unit_is_weighed_by_its_own_rows() -> None:
    """Joined with all its items again and again where it is the one, and else with one."""
    again = " ".join(
        f"JOIN items j{place} ON j{place}.okey = o.okey AND (j{place}.part = i.part OR o.total = 260)"
        for place in range(3)
    )
    sql = f"SELECT COUNT(*) AS n, SUM(total) AS s FROM orders o JOIN items i ON i.okey = o.okey {again}"
    assert within_owners(sql)[0] == []
    natural = within_owners("SELECT COUNT(*) AS n FROM orders o JOIN items i ON i.okey = o.okey")
    assert natural[0][0]["n"] > 500


@pytest.mark.parametrize(
    ("sql", "terms"),
    [
        ("SELECT COUNT(*) AS n FROM patients JOIN claims c ON pid = c.person WHERE c.person = 7 AND c.cost > {}", {}),
        (
            "SELECT COUNT(*) AS n FROM patients JOIN claims c ON pid = c.person WHERE c.person = 7 AND c.cost > {}",
            {"reveal": "size"},
        ),
        ("SELECT SUM(age) AS s FROM patients JOIN claims c ON pid = c.person WHERE c.person = 7 AND c.cost > {}", {}),
        (
            "SELECT COUNT(*) AS n FROM patients JOIN (SELECT c.person, c.cost FROM claims c JOIN "
            "(SELECT 7 AS person FROM regions) r USING (person) WHERE c.cost > {}) c ON pid = c.person",
            {},
        ),
        (
            "SELECT MAX(age) AS s FROM patients JOIN (SELECT person AS q, cost FROM claims) c ON pid = q "
            "WHERE q = 7 AND cost > {}",
            {},
        ),
        (
            "SELECT MAX(age) AS s FROM patients JOIN (SELECT person, cost, person = 7 AS flag FROM claims) c "
            "ON pid = c.person WHERE flag AND cost > {}",
            {},
        ),
        (
            "WITH d AS (SELECT person AS q, cost FROM claims) SELECT MAX(age) AS s FROM patients JOIN d ON pid = q "
            "WHERE q = 7 AND cost > {}",
            {},
        ),
    ],
)
def test_whether_a_named_person_has_a_dear_claim_shows_nowhere(sql: str, terms: dict[str, str]) -> None:
    """Their claims cost 4900 at most: neither the analyst nor a party can tell which of the two was asked."""
    assert between_owners(sql.format(4899), **terms) == between_owners(sql.format(4900), **terms)


@pytest.mark.parametrize(
    "rows",
    [
        "claims c JOIN regions r ON r.region = c.region AND c.cost > 2000",
        "claims c JOIN regions r ON r.region = c.region WHERE c.cost > 2000",
    ],
)
def test_a_condition_does_not_choose_which_identifiers_owners_learn(rows: str) -> None:
    sql = f"SELECT COUNT(*) AS n, AVG(age) AS a FROM patients JOIN (SELECT c.person FROM {rows}) c ON pid = c.person"
    question, learnt = read_question({"kind": "query", "sql": sql}), dict[str, Any]()
    tables, terms = owners_of(question, CLAIMS, 10)
    ask_owners(question, tables, terms, on_match=learnt.setdefault)
    assert len(learnt["hospital"]) == PEOPLE


@pytest.mark.parametrize(
    "rows",
    [
        "orders o JOIN (SELECT {} AS okey FROM nations) c USING (okey)",
        "orders o JOIN (SELECT {} AS okey FROM nations) c ON o.okey = c.okey",
        "orders o JOIN items i USING (okey) JOIN (SELECT {} AS okey FROM nations) c ON i.okey = c.okey",
        "(SELECT okey AS q, total FROM orders) u WHERE q = {}",
        "orders o WHERE EXISTS (SELECT * FROM items i WHERE i.okey = o.okey AND i.okey = {})",
        "orders o WHERE o.okey IN (SELECT okey FROM items WHERE okey = {})",
    ],
)
def test_whether_an_order_is_there_is_not_told(rows: str) -> None:
    sql = f"SELECT COUNT(*) AS n FROM {rows}"
    assert within_owners(sql.format(8)) == within_owners(sql.format(99_999))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT priority, COUNT(*) AS n FROM (SELECT * FROM (SELECT o.okey, o.priority FROM orders o "
        "JOIN nations n ON n.nation = 'nation 0' AND o.okey = 8) a) b GROUP BY priority",
        "SELECT priority, COUNT(*) AS n FROM (SELECT o.okey, o.priority FROM orders o JOIN items i "
        "ON i.okey = o.okey AND o.total = 260) a WHERE EXISTS (SELECT * FROM nations) GROUP BY priority",
    ],
)
def test_a_join_does_not_choose_which_public_values_are_told(sql: str) -> None:
    assert "name the tables of the subquery in FROM itself" in within_owners(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT t, COUNT(*) AS n FROM (SELECT patient AS t, ward AS t FROM stays) u GROUP BY t",
        "SELECT patient, COUNT(*) AS n FROM (SELECT *, ward AS patient FROM stays) u GROUP BY patient",
        "SELECT COUNT(t) AS n FROM (SELECT patient AS t, ward AS T FROM stays) u",
        f'SELECT w, COUNT(*) AS n FROM (SELECT "{KELVIN}" AS w FROM (SELECT patient AS "{KELVIN}", ward AS k FROM '
        "stays) a) b GROUP BY w",
        f'WITH "{KELVIN}" AS (SELECT patient AS t FROM stays), k AS (SELECT ward AS t FROM stays) '
        f'SELECT t, COUNT(*) AS n FROM "{KELVIN}" GROUP BY t',
        'SELECT SUM(t) FROM (SELECT 1 AS "winnow mark 1", CASE WHEN age = 110 THEN cost ELSE 1 END AS t FROM stays)',
        'SELECT SUM(t) FROM (SELECT 1 AS "WINNOW MARK 0", CASE WHEN age = 110 THEN cost ELSE 1 END AS t FROM stays)',
    ],
)
def test_what_is_checked_is_what_is_read(sql: str) -> None:
    """Of two columns with one name the last was checked, and the first was read."""
    with pytest.raises(WinnowError, match=r"two columns called|capitals of names|names that begin with 'winnow'"):
        answer_of(sql, TABLES)


def test_how_many_pairs_there_may_be_follows_from_no_condition() -> None:
    from near_tables import near_owners, near_rows

    rows, opened = near_rows(60, seed=1), list[list[Any]]()
    for limit in (0, 10**6):
        sql = f"SELECT COUNT(*) AS n FROM crimes JOIN lamps ON DWITHIN(ax, ay, bx, by, 6) WHERE av > {limit}"
        question, seen = read_question({"kind": "query", "sql": sql}), list[tuple[str, Any]]()
        tables, terms = near_owners(rows, question.table, 10)
        merged = merge_terms(question, terms)
        run_plain(lambda: recorded(question.program(merged), seen), list(tables.values()))  # noqa: B023 - run at once
        opened.append([values.tolist() for label, values in seen if "pairs" in label])
    assert opened[0] == opened[1] != []


@pytest.mark.parametrize(
    "value",
    [
        "CAST(age + 18 AS TINYINT)",
        "age * 84200000000000000 / 84200000000000000",
        "ASIN(age / 109.5)",
        "CAST(age AS INTEGER) * 19600000",
        "LENGTH(SUBSTRING(outcome, age * 40000000)) % 10",
        "CAST(age / 109.5 AS DECIMAL(2, 2))",
        "SQRT(109.5 - age)",
    ],
)
def test_rows_on_which_an_expression_fails_are_not_what_two_numbers_differ_by(value: str) -> None:
    """Each fails on the only person of 110 years, and on nobody else."""
    for one, other in (("COUNT(*)", f"COUNT({value})"), ("SUM(cost + 0 * age)", f"SUM(cost + 0 * ({value}))")):
        told = answer_or_refusal(f"SELECT {one} AS s, {other} AS t FROM stays WHERE cost IS NOT NULL")
        refused = isinstance(told, str) and ("could tell a single row" in told or "bounds" in told)
        assert refused or None in told[0].values() or told[0]["s"] == told[0]["t"]
    assert answer_or_refusal("SELECT COUNT(age + 18) AS n FROM stays") == [{"n": 400}]


def test_an_expression_that_stands_twice_fails_on_a_row_without_an_error() -> None:
    """DuckDB computed it once, outside of what catches errors; the error told of one person, and who has their row."""
    value = "CAST(SUBSTRING('1x', 1 + CAST(age > 109 AS INTEGER), 1) AS INTEGER)"
    sql = f"SELECT SUM({value} % 3) AS s, COUNT({value}) AS c FROM stays WHERE patient = 'p7'"
    assert answer_or_refusal(sql) == []


@pytest.mark.parametrize(
    "rows",
    [
        "stays WHERE age = 110 OR cost < 1000",
        "stays WHERE NOT (age <> 110 AND cost >= 1000)",
        "stays WHERE CASE WHEN age = 110 THEN TRUE ELSE cost < 1000 END",
        "stays WHERE cost < 1000 + 50000 * (age // 110)",
        "(SELECT * FROM stays WHERE age = 110 OR cost < 1000) u",
        "(SELECT cost, age = 110 OR cost < 1000 AS f FROM stays) u WHERE f",
        "(SELECT * FROM stays WHERE cost IS NOT NULL ORDER BY age = 110 DESC, cost LIMIT 10) u",
    ],
)
def test_a_condition_does_not_add_one_person_to_many(rows: str) -> None:
    """MAX(cost) was that person's; all others were cheaper."""
    assert hides_the_person("MAX(cost)", rows)


def test_a_condition_with_several_reasons_is_told_of_where_each_has_enough_rows() -> None:
    (row,) = answer_or_refusal("SELECT COUNT(*) AS n FROM stays WHERE age < 50 OR age > 60")
    assert row["n"] > 100


@pytest.mark.parametrize(
    "value",
    [
        "GREATEST(age, 50, 105)",
        "LEAST(-age, -50, -105)",
        "CAST(age / 220.0 AS DECIMAL(9, 0)) * cost",
        "((age / 110.0 - 0.495 + 6755399441055744) - 6755399441055744) * cost",
        "(CAST(age / 110.0 - 0.495 + 12582912 AS FLOAT) - 12582912) * cost",
    ],
)
def test_a_step_does_not_leave_one_row_in_a_sum(value: str) -> None:
    assert hides_the_person(f"SUM({value})", "stays", "could tell a single row")


@pytest.mark.parametrize("number", ["SUM(flag)", "SUM(flag * pay)", "SUM(five * pay)", "CORR(flag, pay)"])
def test_a_number_that_few_rows_have_is_told_in_no_sum(number: str) -> None:
    declared = TableDeclaration.model_validate(
        {
            "columns": {
                "flag": {"level": "protected", "type": "number", "bounds": [0, 1]},
                "five": {"level": "protected", "type": "integer", "values": [0, 5]},
                "pay": {"level": "protected", "type": "integer", "bounds": [0, 100_000]},
            }
        }
    )
    one, many = np.zeros(60), np.arange(60) * 1000 + 7
    one[3] = 1
    tables = [OwnerTable(declared, arrow.table({"flag": one, "five": (5 * one).astype(int), "pay": many}))] * 2
    question = read_question({"kind": "query", "sql": f"SELECT {number} AS s, SUM(pay) AS p FROM stays"})
    terms = merge_terms(question, terms_of(2, declaration=declared))
    assert run_plain(lambda: question.program(terms), tables)["rows"] == [{"s": None, "p": int(2 * many.sum())}]


def test_a_join_with_very_many_rows_ends_in_one_line() -> None:
    copies = " ".join(f"CROSS JOIN nations n{place}" for place in range(9))
    assert "join fewer tables" in within_owners(f"SELECT COUNT(*) AS n FROM orders o {copies}")
