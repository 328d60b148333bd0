"""What a statement compares: texts that DuckDB takes for numbers, and truths, compare as in DuckDB; any other is a line
before anybody is asked, and so is text beside what is no text.
"""

import pytest

from query_tables import answer_of, divided, pooled_answer, pooled_rows
from test_query_dates import refusal_of
from winnow.analytics.sql.duckdb_engine import type_over_nulls
from winnow.core import WinnowError

ROWS = pooled_rows(400, seed=1)
TABLES = divided(ROWS, 3, seed=0)
NO_NUMBER = "is not a number; write a number without quotes, such as 20"
NO_TRUTH = "is neither true nor false; write TRUE or FALSE"
NO_CONDITION = "text is no condition; compare it with something, as in column = 'value'"
NO_YEAR = "write a date in quotes, such as '2024-12-31', or take a number of the date, such as YEAR(…)"
NO_UNIT = "is no part of a date; write YEAR, MONTH, DAY or another"
MIXED = "convert one of them with TRY_CAST"


@pytest.mark.parametrize(
    ("condition", "line"),
    [
        ("age > '20x0'", f"'20x0' {NO_NUMBER}"),
        ("'20x0' <= cost", f"'20x0' {NO_NUMBER}"),
        ("age = ('')", f"'' {NO_NUMBER}"),
        ("age IS NOT DISTINCT FROM '1,000'", f"'1,000' {NO_NUMBER}"),
        ("age NOT IN (20, '30', '20x0')", f"'20x0' {NO_NUMBER}"),
        ("cost BETWEEN '10' AND '20x0'", f"'20x0' {NO_NUMBER}"),
        ("CASE WHEN age > '20x0' THEN TRUE ELSE well END", f"'20x0' {NO_NUMBER}"),
        ("CASE age WHEN '20x0' THEN TRUE ELSE well END", f"'20x0' {NO_NUMBER}"),
        ("CASE WHEN well THEN age ELSE '20x0' END > 3", f"'20x0' {NO_NUMBER}"),
        ("CASE WHEN well THEN age ELSE '5' END > '20x0'", f"'20x0' {NO_NUMBER}"),
        ("COALESCE(age, '20x0') > 3", f"'20x0' {NO_NUMBER}"),
        ("GREATEST(age, '20x0') > 3", f"'20x0' {NO_NUMBER}"),
        ("NULLIF(age, '20x0') > 3", f"'20x0' {NO_NUMBER}"),
        ("NOT (well OR YEAR(day) = '20x0')", f"'20x0' {NO_NUMBER}"),
        ("ABS(x - y) < '20x0'", f"'20x0' {NO_NUMBER}"),
        ("age + '20x0' > 3", f"'20x0' {NO_NUMBER}"),
        ("CAST('20x0' AS INTEGER) < age", f"'20x0' {NO_NUMBER}"),
        ("5 > '20x0'", f"'20x0' {NO_NUMBER}"),
        ("age < '1e30'", "'1e30' does not fit BIGINT; write a number without quotes, such as 20"),
        ("well = 'maybe'", f"'maybe' {NO_TRUTH}"),
        ("well IN ('true', 'maybe')", f"'maybe' {NO_TRUTH}"),
        ("note = 17", "the statement compares text with the number 17; write '17'"),
        ("note NOT IN ('ill', 17)", "the statement compares text with the number 17; write '17'"),
        ("outcome <> 1.5", "the statement compares text with the number 1.5; write '1.5'"),
        ("note = -17", "the statement compares text with the number -17; write '-17'"),
        ("age > 5 AND 'maybe'", f"'maybe' {NO_TRUTH}"),
        ("'maybe'", f"'maybe' {NO_TRUTH}"),
        ("NOT (well OR note)", NO_CONDITION),
        ("CASE WHEN note THEN TRUE ELSE well END", NO_CONDITION),
        ("note = age", f"the statement compares text with integer; {MIXED}"),
        ("note IS TRUE", f"the statement compares text with boolean; {MIXED}"),
        ("day = TRUE", f"the statement compares date with boolean; {MIXED}"),
        ("cost = day", f"the statement compares number with date; {NO_YEAR}"),
        ("day = 2024", f"the statement compares date with integer; {NO_YEAR}"),
    ],
)
def test_operands_that_cannot_be_compared_are_refused(condition: str, line: str) -> None:
    """They chose no rows, and nobody knew why."""
    for sql in (
        f"SELECT COUNT(*) AS n\nFROM stays\nWHERE {condition}",
        f"SELECT age\nFROM stays\nWHERE {condition}",
        f"SELECT\nCOUNT(*)\nFILTER (WHERE {condition}) AS n FROM stays",
        f"SELECT COUNT(*) AS n FROM\n(SELECT * FROM stays\nWHERE {condition}) AS u",
    ):
        assert refusal_of(sql) == f"{line} (line 3)"


@pytest.mark.parametrize(
    ("end", "line"),
    [
        ("HAVING COUNT(*) > '20x0'", f"'20x0' {NO_NUMBER}"),
        ("HAVING AVG(cost) BETWEEN '10' AND '20x0'", f"'20x0' {NO_NUMBER}"),
        ("HAVING COUNT(*) > 3 AND SUM(age) / COUNT(*) > '20x0'", f"'20x0' {NO_NUMBER}"),
        ("ORDER BY CASE WHEN MAX(age) > '20x0' THEN 1 ELSE 2 END", f"'20x0' {NO_NUMBER}"),
        ("HAVING MIN(cost) + '20x0' > 3", f"'20x0' {NO_NUMBER}"),
        ("HAVING COUNT(*) > 1 AND 'maybe'", f"'maybe' {NO_TRUTH}"),
        ("HAVING ward", NO_CONDITION),
        ("HAVING ward = 5", "the statement compares text with the number 5; write '5'"),
    ],
)
def test_nor_are_they_compared_with_what_has_been_opened(end: str, line: str) -> None:
    """The statement failed when everything had been opened, and paid for."""
    assert refusal_of(f"SELECT ward, COUNT(*) AS n FROM stays GROUP BY ward\n{end}") == f"{line} (line 2)"


@pytest.mark.parametrize(
    ("condition", "line"),
    [
        ("ROUND(cost, 'a') > 3", f"'a' {NO_NUMBER}"),
        ("ROUND(cost, 1.5) > 3", "ROUND(cost, 1.5) needs a whole number in place of 1.5; write one such as 2"),
        ("SQRT('x') > 3", f"'x' {NO_NUMBER}"),
        ("SUBSTRING(note, 1, 'b') = 'x'", f"'b' {NO_NUMBER}"),
        ("note LIKE 5", "note LIKE 5 needs text in place of 5; write it in quotes"),
        ("LOWER(age) = 'x'", "LOWER(age) needs text in place of age; write TRY_CAST(age AS VARCHAR)"),
        ("age + note > 3", "age + note needs a number in place of note; write TRY_CAST(note AS DOUBLE)"),
        ("ABS('5') > 3", "ABS('5') needs a number in place of '5'; write a number without quotes, such as 20"),
        ("SUBSTRING(note) = 'x'", "SUBSTRING(note) cannot be computed; check its arguments"),
        ("COALESCE(note, 5) = 'x'", "COALESCE(note, 5) needs text in place of 5; write it in quotes"),
        ("day > DATE '2020-01-01' - INTERVAL 'x' DAY", f"'x' {NO_NUMBER}"),
        ("day > DATE '2020-01-01' - INTERVAL 'three days'", f"'three days' {NO_NUMBER}"),
        ("day + INTERVAL 3 FORTNIGHT > '2020-01-01'", f"FORTNIGHT {NO_UNIT}"),
        ("DATEDIFF('dya', day, DATE '2020-01-01') > 3", f"DYA {NO_UNIT}"),
        ("EXTRACT(MOTH FROM day) = 3", f"MOTH {NO_UNIT}"),
        ("YEAR(age) = 3", "YEAR(age) needs a date in place of age; write DATE '2024-12-31'"),
        ("LN(day) > 3", "LN(day) needs a number in place of day; take a number of the date, such as YEAR(…)"),
        (
            "day - '3 days' > '2020-01-01'",
            "day - '3 days' needs an interval in place of '3 days'; write INTERVAL 3 DAY",
        ),
        ("CAST(day AS INTEGER) > 3", f"the statement converts date to integer; {NO_YEAR}"),
        ("day + INTERVAL (day) DAY > '2020-01-01'", f"the statement converts date to number; {NO_YEAR}"),
        ("CAST(300 AS TINYINT) > 3", "CAST(300 AS TINYINT) cannot be computed; check its arguments"),
        ("age > 9223372036854775807 + 1", "9223372036854775807 + 1 cannot be computed; check its arguments"),
        ("age % 0 = 1", "age % 0 divides by 0; write another number"),
    ],
)
def test_what_can_be_computed_for_no_row_is_refused(condition: str, line: str) -> None:
    """It was NULL in every row, or a line of DuckDB's own."""
    for sql in (
        f"SELECT COUNT(*) AS n\nFROM stays\nWHERE {condition}",
        f"SELECT age\nFROM stays\nWHERE {condition}",
        f"SELECT COUNT(*) AS n,\n\n{condition} AS k FROM stays GROUP BY k",
        f"SELECT\nCOUNT(*)\nFILTER (WHERE {condition}) AS n FROM stays",
        f"SELECT COUNT(*) AS n FROM\n(SELECT\n{condition} AS k FROM stays) AS u",
    ):
        assert refusal_of(sql) == f"{line} (line 3)"


@pytest.mark.parametrize(
    ("end", "line"),
    [
        (
            "HAVING MAX(CAST(age AS TINYINT)) < '300'",
            "'300' does not fit TINYINT; write a number without quotes, such as 20",
        ),
        (
            "HAVING MAX(CAST(age AS TINYINT)) IN (5, '300')",
            "'300' does not fit TINYINT; write a number without quotes, such as 20",
        ),
        ("HAVING SUM(age) < '1e300'", "'1e300' does not fit HUGEINT; write a number without quotes, such as 20"),
        ("HAVING ROUND(AVG(age), 'a') > 3", f"'a' {NO_NUMBER}"),
        (
            "HAVING ROUND(AVG(age), COUNT(*)) > 3",
            "ROUND(AVG(age), COUNT(*)) needs a whole number in place of COUNT(*); write one such as 2",
        ),
        ("HAVING ward LIKE 5", "ward LIKE 5 needs text in place of 5; write it in quotes"),
        (
            "HAVING LENGTH(COUNT(*)) > 3",
            "LENGTH(COUNT(*)) needs text in place of COUNT(*); write TRY_CAST(COUNT(*) AS VARCHAR)",
        ),
        ("HAVING DATE '2020-01-01' + INTERVAL 'x' DAY > '2020-01-01'", f"'x' {NO_NUMBER}"),
        ("ORDER BY COUNT(*) // 0", "COUNT(*) // 0 divides by 0; write another number"),
        ("ORDER BY -1", "ORDER BY -1: SELECT has 2 columns"),
        ("LIMIT 99999999999999999999", "LIMIT takes a whole number up to 9,223,372,036,854,775,807"),
    ],
)
def test_nor_is_it_computed_from_what_has_been_opened(end: str, line: str) -> None:
    """The statement failed when everything had been opened, and paid for."""
    assert refusal_of(f"SELECT ward, COUNT(*) AS n FROM stays GROUP BY ward\n{end}") == f"{line} (line 2)"


@pytest.mark.parametrize("value", ["SUM(ROUND(cost, 'a'))", "CORR(age, SQRT('a'))", "ROUND(AVG(cost), 'a')"])
def test_arguments_of_aggregates_are_checked_too(value: str) -> None:
    assert refusal_of(f"SELECT {value} AS told FROM stays") == f"'a' {NO_NUMBER} (line 1)"


def test_a_column_of_a_subquery_keeps_its_narrow_type() -> None:
    """It was NULL < NULL in every row, and the answer 0."""
    sql = "SELECT COUNT(*) AS n FROM (SELECT CAST(age AS TINYINT) AS a FROM stays) u WHERE a < '{}'"
    assert refusal_of(sql.format(300)).startswith("'300' does not fit TINYINT;")
    (row,) = answer_of(sql.format(60), TABLES)["rows"]
    assert (row["n"],) == pooled_answer(sql.format(60), ROWS)[0]


@pytest.mark.parametrize(
    "condition",
    [
        "age > '20'",
        "age > ' 20 '",
        "age > '2e1'",
        "age < '20.5'",
        "age < '0x20'",
        "age < '1_000'",
        "cost < 'inf'",
        "age NOT IN ('20', 30)",
        "age BETWEEN '20' AND cost",
        "age + '5' > 60",
        "CASE WHEN well THEN age ELSE '5' END > '20'",
        "CAST(age AS TEXT) <> '20x0'",
        "note <> '17'",
        "TRY_CAST(note AS INTEGER) = 17",
        "well = 'yes'",
        "well <> 'f'",
        "well = 1",
        "well IS NOT TRUE",
        "age > NULL OR age > 20",
        "TRY_CAST('20x0' AS INTEGER) IS NULL",
        "'no' OR age > 20",
        "well AND age",
        "COALESCE(NULL, note) = 'ill'",
        "ROUND(cost, '1') > 3",
        "ROUND(cost, NULL) IS NULL",
        "SUBSTRING(note, '1', '1') <> 'x'",
        "CAST(age AS TINYINT) < 300",
        "day > DATE '2020-01-01' - INTERVAL '3' DAY",
        "day > DATE '2020-01-01' - INTERVAL '3 days'",
        "day + INTERVAL (age) DAY > '2020-01-01'",
        "DATEDIFF('weeks', DATE '2020-01-01', day) > 3",
        "LENGTH(note || 5) > 1",
        "COALESCE(CASE WHEN well THEN NULL END, note) = 'ill'",
        "COALESCE(NULLIF(NULL, note), note) = 'ill'",
        "GREATEST(CASE WHEN well THEN NULL END, day) > '2020-01-01'",
        "LOWER(CASE WHEN well THEN NULL END) IS NULL",
        "CAST('2024-12-31' - CAST(day AS DATE) AS INTEGER) > 30",
        "INTERVAL ('2024-12-31' - CAST(day AS DATE)) DAY > INTERVAL 3 DAY",
        "ROUND(CAST(cost AS DECIMAL(10, 2)), 0+0+0+0+0+0+0+0+0+0+0+1) > 3",
    ],
)
def test_what_duckdb_converts_compares_as_before(condition: str) -> None:
    sql = f"SELECT COUNT(*) AS n FROM stays WHERE {condition}"
    (row,) = answer_of(sql, TABLES)["rows"]
    assert (row["n"],) == pooled_answer(sql, ROWS)[0]
    assert row["n"] >= 10


def test_what_fails_only_where_a_value_is_missing_is_no_mistake() -> None:
    """Each part is tried with its operands missing, and not the whole."""
    answer_of("SELECT COUNT(*) AS n FROM stays WHERE 10 // COALESCE(age, 0) < 5", TABLES)


@pytest.mark.parametrize("operands", ["age, " * 300 + "day", "age, " * 150 + "day, " * 149 + "day"])
def test_who_is_wrong_among_many_operands_is_found_with_few_trials(operands: str) -> None:
    before = type_over_nulls.cache_info().misses
    with pytest.raises(WinnowError, match="needs a date in place of age"):
        answer_of(f"SELECT COUNT(*) AS n FROM stays WHERE GREATEST({operands}) > 3", TABLES)
    assert type_over_nulls.cache_info().misses < before + 40


@pytest.mark.parametrize("select", ["COUNT(*) AS n", "age"])
def test_a_statement_that_is_nested_too_deeply_is_refused_in_one_line(select: str) -> None:
    assert "nested too deeply" in refusal_of(f"SELECT {select} FROM stays WHERE age{'+1' * 1_500} > 3")


def test_groups_are_chosen_by_a_number_in_quotes() -> None:
    sql = "SELECT ward, COUNT(*) AS n FROM stays GROUP BY ward HAVING COUNT(*) > '1e2' ORDER BY ward"
    told = [(row["ward"], row["n"]) for row in answer_of(sql, TABLES)["rows"]]
    assert told == [each for each in pooled_answer(sql, ROWS) if each[0] is not None]
    assert told


def test_conditions_of_joins_are_checked_too() -> None:
    from planted_tables import answer_of_copies

    for condition in ("number = '20x0'", "number = 1 AND age > '20x0'"):
        with pytest.raises(WinnowError, match=f"^'20x0' {NO_NUMBER}"):
            answer_of_copies(f"SELECT COUNT(*) AS n FROM stays JOIN places ON {condition}")
