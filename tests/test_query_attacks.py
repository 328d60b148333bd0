"""Analysts who want one person's row out of one statement: by parts that are subtracted, errors, NULLs and tags."""

from itertools import pairwise

import pyarrow as arrow
import pytest

from planted_tables import COUNT, PERSON, ROWS, TABLES, answer_of_copies, answer_of_two
from query_tables import answer_of, divided, pooled_answer, terms_of
from winnow.analytics.program import run_plain
from winnow.analytics.question import QueryTerms, merge_terms, read_question
from winnow.analytics.sealed_answer import with_reader
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import ConfigError

ONE_PERSON = "SELECT * FROM stays WHERE patient = 'p7'"


@pytest.mark.parametrize(
    "source",
    [
        " UNION ALL ".join([ONE_PERSON] * 10),
        f"{ONE_PERSON} UNION ALL SELECT * FROM (SELECT * FROM stays) AS again",
        f"SELECT age FROM ({ONE_PERSON}) AS one UNION ALL SELECT 0 AS age FROM stays",
    ],
)
def test_a_row_does_not_make_up_the_minimum_by_being_counted_often(source: str) -> None:
    with pytest.raises(ConfigError, match=r"UNION ALL would count rows of stays twice; .* \(line 1\)"):
        answer_of(f"SELECT COUNT(*) AS n, AVG(age) AS age FROM ({source}) AS u", TABLES)
    with pytest.raises(ConfigError, match="UNION ALL would count rows of stays twice"):
        answer_of(f"WITH stay AS (SELECT * FROM stays) SELECT SUM(age) FROM ({source}) AS u", TABLES)


def test_parts_of_a_union_are_told_apart_only_if_all_are_large() -> None:
    """A constant in one part and a column in the other tagged the rows of a person."""
    parts = "SELECT age + 1 AS t FROM stays WHERE {0} UNION ALL SELECT 1 FROM visits"
    one = f"SELECT SUM(t) AS s, COUNT(*) AS n FROM ({parts}) AS u"
    for chosen in ("patient = 'p7'", "age = 110"):
        assert answer_of_two(one.format(chosen))["rows"] == [{"s": None, "n": COUNT + 1}]
    (told,) = answer_of_two(one.format("age > 50"))["rows"]
    old = [each for each in ROWS.column("age").to_pylist() if each > 50]
    assert told == {"s": sum(old) + len(old) + COUNT, "n": len(old) + COUNT}
    with pytest.raises(ConfigError, match="a condition within a column of UNION ALL is not supported"):
        answer_of_two("SELECT SUM(t) FROM (SELECT NULLIF(age, 110) AS t FROM stays UNION ALL SELECT age FROM visits) u")


PLAIN = "SELECT COUNT(*) AS n, SUM({0}) AS s FROM stays"
WITHIN = "SELECT COUNT(*) AS n, SUM(t) AS s FROM (SELECT {0} AS t FROM stays) AS u"
DEEP = "SELECT COUNT(*) AS n, SUM(v + 1) AS s FROM (SELECT t * 2 AS v FROM (SELECT {0} AS t FROM stays) AS a) AS u"
STAR = "WITH u AS (SELECT * FROM (SELECT {0} AS t FROM stays) AS a) SELECT COUNT(*) AS n, AVG(b.t) AS s FROM u AS b"


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        (PLAIN, "GREATEST(age, 105)"),
        (PLAIN, "LEAST(-105, -age)"),
        (PLAIN, "ABS(105 - age)"),
        (PLAIN, "SIGN(age - 105) + 2"),
        (PLAIN, "CAST(well AS INTEGER) * 2 + 1"),
        (WITHIN, "CASE WHEN age = 110 THEN age + 1 ELSE 1 END"),
        (WITHIN, "CAST(well AS INTEGER) * 2 + 1"),
        (DEEP, "COALESCE(NULLIF(age, 110), 1)"),
        (STAR, "CAST(age = 110 AS INTEGER) * 5 + 1"),
    ],
)
def test_a_value_that_one_row_has_by_a_condition_is_in_no_sum(sql: str, value: str) -> None:
    """An offset makes it differ from 0 in all rows; the sum less COUNT(*) was the row's value."""
    written = sql.format(value)
    (row,) = answer_of(written, TABLES)["rows"]
    assert row == {"n": COUNT, "s": None}
    (told,) = answer_of(written, TABLES, minimum=1)["rows"]
    assert tuple(told.values()) == pytest.approx(pooled_answer(written, ROWS)[0])


@pytest.mark.parametrize("sql", [PLAIN, WITHIN, DEEP, STAR])
@pytest.mark.parametrize(
    "value",
    [
        "CAST(age + 20 AS TINYINT)",
        "TRY_CAST(age + 20 AS TINYINT)",
        "CAST(age * 9.1 AS DECIMAL(5, 2))",
        "ASIN((age - 8.5) / 101) * 0 + age",
    ],
)
def test_a_sum_without_the_one_row_on_which_an_expression_fails_is_not_told(sql: str, value: str) -> None:
    """It fails on the age of 110 alone, and beside SUM(age) the sum of all others was that row's value."""
    (row,) = answer_of(sql.format(value), TABLES)["rows"]
    assert row == {"n": COUNT, "s": None}
    (told,) = answer_of(sql.format(value.replace("age", "LEAST(age, 100)")), TABLES, minimum=1)["rows"]
    assert told["s"] is not None


def test_nor_is_what_may_fail_hidden_in_a_part_of_a_union() -> None:
    parts = "SELECT CAST(age + 20 AS TINYINT) AS t FROM stays UNION ALL SELECT age FROM visits"
    with pytest.raises(ConfigError, match="nor is what may fail on a row; write it around UNION ALL"):
        answer_of_two(f"SELECT SUM(t) FROM ({parts}) u")


@pytest.mark.parametrize(
    "source",
    [
        "SELECT * FROM stays WHERE {0}",
        "SELECT * FROM (SELECT * FROM stays WHERE {0}) AS a",
        "SELECT age, {0} AS failed FROM stays",
    ],
)
def test_an_error_on_one_row_is_no_answer(source: str) -> None:
    """It failed if somebody was so old, and was answered if not."""
    rows = []
    for largest in (2**63 - 110, 2**63 - 111):  # the sum is too large, and just not
        fails = f"age + {largest} > 0"
        rows += answer_of(f"SELECT COUNT(*) >= 300 AS many FROM ({source.format(fails)}) AS u", TABLES)["rows"]
    assert rows == [{"many": True}] * 2


def test_a_named_person_is_not_counted_apart() -> None:
    for chosen in ("NULLIF(patient, 'p7')", "CASE WHEN patient <> 'p7' THEN patient END", "COALESCE(patient, patient)"):
        sql = f"SELECT COUNT(DISTINCT k), COUNT(DISTINCT patient) FROM (SELECT patient, {chosen} AS k FROM stays)"
        with pytest.raises(ConfigError, match=r"COUNT\(DISTINCT k\): a condition chooses which rows have it"):
            answer_of(sql, TABLES)


@pytest.mark.parametrize(
    "rows",
    [
        "stays WHERE patient = '{0}' OR age = 40",
        "stays WHERE NOT (patient <> '{0}' AND age <> 40)",
        "(SELECT *, patient = '{0}' AS named FROM stays) AS u WHERE named OR age = 40",
        "(SELECT *, patient AS q FROM stays) AS u WHERE q = '{0}' OR age = 40",
        "(SELECT * FROM (SELECT patient AS q, age, cost FROM stays) AS i WHERE q = '{0}' OR age = 40) AS u",
        "stays WHERE CASE WHEN patient = '{0}' THEN TRUE ELSE age = 40 END",
    ],
)
def test_a_person_is_not_named_beside_rows_whose_values_are_known(rows: str) -> None:
    """SUM(age) - 40 * (COUNT(*) - 1) was the age of p7; MAX(cost) among cheap ones told of p7, too."""
    for person in ("p7", "p8", "nobody"):
        chosen = rows.format(person)
        for sql in (f"SELECT COUNT(*) AS n, SUM(age) AS s, MAX(cost) AS m FROM {chosen}", f"SELECT age FROM {chosen}"):
            question, _ = with_reader(read_question({"kind": "query", "sql": sql}))
            with pytest.raises(ConfigError, match=r"a private column takes a condition of its own|rows that a private"):
                next(question.program(merge_terms(question, terms_of(3, rows=20))))
    named = ", ".join(f"'p{number}'" for number in range(300))
    (row,) = answer_of(f"SELECT COUNT(*) AS n FROM stays WHERE patient IN ({named}) AND age < 105", TABLES)["rows"]
    assert row == {"n": 299}


def test_quantiles_near_each_other_are_not_told() -> None:
    levels = [place / COUNT for place in range(180, 220)]
    near = ", ".join(f"QUANTILE_DISC(cost, {level:.4f}) AS q{place}" for place, level in enumerate(levels))
    disguised = (
        "MEDIAN(age) AS a, MEDIAN(age + 1) AS b, MEDIAN(50 - age) AS c, MEDIAN(age) FILTER (WHERE age > -1) AS d"
    )
    (row,) = answer_of(f"SELECT {near}, {disguised} FROM stays", TABLES)["rows"]
    told = [place for place in range(40) if row[f"q{place}"] is not None]
    assert told[0] == 0
    assert min(after - before for before, after in pairwise(told)) >= 10
    assert row["a"] is not None
    assert [row[name] for name in "bcd"] == [None] * 3


def test_dates_that_overflow_choose_no_rows() -> None:
    rows = ROWS.to_pydict()
    rows["day"] = [each.replace(year=2020) for each in rows["day"]]
    rows["day"][PERSON] = rows["day"][PERSON].replace(year=2021)
    tables = divided(arrow.table(rows, schema=ROWS.schema), 2, seed=0)
    (row,) = answer_of("SELECT COUNT(*) AS n, COUNT(day + INTERVAL 292226 YEAR) AS d FROM stays", tables)["rows"]
    assert row == {"n": COUNT, "d": None}


def test_rounding_to_thousands_is_not_cut_off_at_the_bounds() -> None:
    declared = TableDeclaration.model_validate(
        {"columns": {"pay": {"level": "protected", "type": "integer", "bounds": [0, 600]}}}
    )
    table = OwnerTable(declared, arrow.table({"pay": [600] * 20}))
    question = read_question({"kind": "query", "sql": "SELECT SUM(ROUND(pay, -3)) AS s FROM stays"})
    terms = merge_terms(question, {"owner": QueryTerms(declaration=declared, allow=("aggregate",), owners=1)})
    assert run_plain(lambda: question.program(terms), [table])["rows"] == [{"s": pytest.approx(20_000)}]


@pytest.mark.parametrize("other", ["SUM(age + 0 * cost)", "CORR(age, cost)", "AVG(age * (cost + 1))"])
def test_rows_that_lack_one_column_do_not_follow_from_two_sums(other: str) -> None:
    """Σ age over all rows less Σ age over those that have a cost was the age of the one row without."""
    (row,) = answer_of(f"SELECT SUM(age) AS s, {other} AS o, SUM(x) AS x FROM stays", TABLES)["rows"]
    assert row["s"] == sum(ROWS.column("age").to_pylist())
    assert row["o"] is None
    assert row["x"] is not None
    (row,) = answer_of(f"SELECT SUM(age) AS s, {other} AS o FROM stays WHERE cost IS NOT NULL", TABLES)["rows"]
    assert None not in row.values()


# Joins that count one person often ------------------------------------------------------------------------------------

OFTEN = "number = 1 OR age = 110"
"""Counts the one person who is so old 2,000 times, and every other once."""


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("group", ["", " GROUP BY well IS NULL", " GROUP BY number >= 0"])
def test_nobody_is_counted_so_often_that_a_sum_tells_of_them(group: str, replicated: bool) -> None:
    """COUNT(*) was 2,000 and the others, SUM(x) 2,000 times this person's and little beside."""
    sql = f"SELECT COUNT(*) AS n, SUM(x) AS s FROM stays JOIN places ON {OFTEN} WHERE x IS NOT NULL{group}"
    answer = answer_of_copies(sql, replicated=replicated)
    assert (answer["rows"], answer["left_out"], answer["overlapping"]) == ([], 1, 1)
    assert answer_of_copies(sql, minimum=1, replicated=replicated)["rows"]
    once = answer_of_copies(sql.replace(OFTEN, "number = 1"), replicated=replicated)
    assert [row["n"] for row in once["rows"]] == [COUNT]


def test_a_condition_does_not_choose_how_often_one_person_is_summed() -> None:
    """Everybody is joined with all places, and FILTER keeps one of them, of the oldest person all."""
    sql = f"SELECT SUM(x) FILTER (WHERE {OFTEN}) AS s, COUNT(*) AS n FROM stays JOIN places ON number < 20"
    assert answer_of_copies(sql, replicated=True)["rows"] == []
    (row,) = answer_of_copies(sql.replace(OFTEN, "number = 1"), replicated=True)["rows"]
    assert row["n"] == 20 * COUNT


@pytest.mark.parametrize(
    "rows",
    [
        "stays JOIN places ON number = 1 OR patient = 'p7'",
        "stays JOIN places ON number = 1 WHERE patient = 'p7' OR age < 60",
        "places JOIN LATERAL (SELECT * FROM stays WHERE patient = 'p7' OR age < 9 ORDER BY DISTANCE(number, 0, age, x) "
        "LIMIT 12) n ON TRUE",
    ],
)
def test_a_private_column_does_not_choose_who_is_counted_often(rows: str) -> None:
    """The age of p7 was in the thousands of a sum; and whether rows are counted often told of p7, too."""
    with pytest.raises(ConfigError, match="a private column cannot stand in a join with rows that all owners have"):
        answer_of_copies(f"SELECT SUM(age) AS s FROM {rows}")


@pytest.mark.parametrize("order", ["age DESC", "DISTANCE(age, x, 110, 0)"])
def test_a_search_does_not_end_at_a_person_whom_a_private_column_names(order: str) -> None:
    """All parties learnt what the last of the first rows is sorted by, closely."""
    rows = f"SELECT * FROM stays WHERE patient = 'p7' OR age < 60 ORDER BY {order} LIMIT 12"
    with pytest.raises(ConfigError, match="a private column cannot stand beside ORDER BY … LIMIT"):
        answer_of(f"SELECT COUNT(*) AS n FROM ({rows}) AS first", TABLES)
