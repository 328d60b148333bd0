"""What a statement compares: texts that DuckDB takes for numbers, and truths, compare as in DuckDB; any other is a line
before anybody is asked, and so is text beside what is no text.
"""

import pytest

from query_tables import answer_of, divided, pooled_answer, pooled_rows
from test_query_dates import refusal_of
from winnow.core import WinnowError

ROWS = pooled_rows(400, seed=1)
TABLES = divided(ROWS, 3, seed=0)
NO_NUMBER = "is not a number; write a number without quotes, such as 20"
NO_TRUTH = "is neither true nor false; write TRUE or FALSE"
NO_CONDITION = "text is no condition; compare it with something, as in column = 'value'"
NO_YEAR = "write a date in quotes, such as '2024-12-31', or take a number of the date, such as YEAR(…)"
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
    ],
)
def test_what_duckdb_converts_compares_as_before(condition: str) -> None:
    sql = f"SELECT COUNT(*) AS n FROM stays WHERE {condition}"
    (row,) = answer_of(sql, TABLES)["rows"]
    assert (row["n"],) == pooled_answer(sql, ROWS)[0]
    assert row["n"] >= 10


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
