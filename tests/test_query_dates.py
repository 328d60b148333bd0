"""Dates in statements: those that there are compare as in DuckDB, one that there is not is a line before anybody is
asked.
"""

from pathlib import Path
from typing import Any

import pyarrow as arrow
import pytest

from command_line import call
from query_tables import DAY, answer_of, divided, pooled_answer, pooled_rows, terms_of
from winnow import questions
from winnow.analytics.question import merge_terms, read_question
from winnow.analytics.sealed_answer import with_reader
from winnow.analytics.simulate import ask_owners
from winnow.core import ConfigError, WinnowError

ROWS = pooled_rows(400, seed=1)
TABLES = divided(ROWS, 3, seed=0)
HINT = "write one that exists, such as '2024-12-31', or '2024-12-31 18:30:00' with a time"


def refusal_of(sql: str) -> str:
    """Before the first step, of owners who would show rows, too."""
    question, _ = with_reader(read_question({"kind": "query", "sql": sql}))
    with pytest.raises(ConfigError) as refused:
        next(question.program(merge_terms(question, terms_of(3, rows=20))))
    return str(refused.value)


@pytest.mark.parametrize(
    ("condition", "written"),
    [
        ("day > '2024-13-01'", "2024-13-01"),
        ("'2021-02-29' <= day", "2021-02-29"),
        ("day = '2020-06-31'", "2020-06-31"),
        ("day <> '01.06.2020'", "01.06.2020"),
        ("day < '2020'", "2020"),
        ("day > ''", ""),
        ("day > ' 2020-06-01 '", " 2020-06-01 "),
        ("day > ('2024-13-01')", "2024-13-01"),
        ("day IS NOT DISTINCT FROM '2024-13-01'", "2024-13-01"),
        ("day > '2020-06-01 25:00:00'", "2020-06-01 25:00:00"),
        ("day > '2020-06-01 12:60'", "2020-06-01 12:60"),
        ("day > TIMESTAMP '2020-06-31 12:00:00'", "2020-06-31 12:00:00"),
        ("day > DATE '2024-13-01'", "2024-13-01"),
        ("day > CAST('2024-13-01' AS DATE) - INTERVAL 3 MONTH", "2024-13-01"),
        ("CAST(day AS DATE) = '2024-13-01'", "2024-13-01"),
        ("day + INTERVAL 1 DAY > '2024-13-01'", "2024-13-01"),
        ("DATE_TRUNC('month', day) = '2020-06-31'", "2020-06-31"),
        ("day BETWEEN '2019-06-01' AND '2020-02-30'", "2020-02-30"),
        ("day NOT IN ('2020-06-01', '2020-06-31')", "2020-06-31"),
        ("NOT (age > 3 OR day > '2024-13-01')", "2024-13-01"),
        ("COALESCE(day, '2024-13-01') > '2020-01-01'", "2024-13-01"),
        ("GREATEST(day, '2024-13-01') > '2020-01-01'", "2024-13-01"),
        ("DATEDIFF('day', '2024-13-01', day) > 3", "2024-13-01"),
        ("CASE day WHEN '2024-13-01' THEN TRUE ELSE well END", "2024-13-01"),
        ("CASE WHEN well THEN day ELSE '2024-13-01' END > '2020-01-01'", "2024-13-01"),
        ("day > '2024-13-01\n\x1b[2J'", "2024-13-01 ?[2J"),
    ],
)
def test_a_text_that_is_no_date_is_refused_where_a_date_is_compared(condition: str, written: str) -> None:
    for sql in (
        f"SELECT COUNT(*) AS n\nFROM stays\nWHERE {condition}",
        f"SELECT age\nFROM stays\nWHERE {condition}",
        f"SELECT\nCOUNT(*)\nFILTER (WHERE {condition}) AS n FROM stays",
        f"SELECT COUNT(*) AS n FROM\n(SELECT * FROM stays\nWHERE {condition}) AS u",
    ):
        assert refusal_of(sql) == f"'{written}' is not a date; {HINT} (line 3)"


@pytest.mark.parametrize(
    "end",
    [
        "SELECT ward, MAX(day) AS last FROM stays GROUP BY ward\nHAVING MAX(day) > '2024-13-01'",
        "SELECT ward,\nMAX(day) AS last FROM stays GROUP BY ward HAVING last BETWEEN '2019-01-01' AND '2024-13-01'",
        "SELECT ward, MAX(day) AS last FROM stays GROUP BY ward\nORDER BY MEDIAN(day) > '2024-13-01'",
        "SELECT ward,\nMIN(day) > '2024-13-01' AS late FROM stays GROUP BY ward",
        "SELECT ward, COUNT(*) AS n FROM stays GROUP BY ward\nHAVING n > 3 AND DATE '2024-13-01' > DATE '2020-01-01'",
    ],
)
def test_nor_is_it_compared_with_what_has_been_opened(end: str) -> None:
    """It failed when everything had been opened, and paid for."""
    assert refusal_of(end) == f"'2024-13-01' is not a date; {HINT} (line 2)"


@pytest.mark.parametrize("other", ["ward", "'2024-' || '13-01'", "LOWER('2024-13-01')"])
def test_nor_with_what_is_no_date_at_all(other: str) -> None:
    sql = f"SELECT ward, MAX(day) AS last FROM stays GROUP BY ward HAVING MAX(day) > {other}"
    assert refusal_of(sql) == "the statement compares date with text; convert one of them with TRY_CAST (line 1)"


@pytest.mark.parametrize(
    "condition",
    [
        "day > '2020-06-01'",
        "day > '2020-6-1'",
        "day > '2020/06/01'",
        "day > '2020-02-29'",
        "day >= '2020-06-01 12:30'",
        "day < '2020-06-01T12:30:00'",
        "day < '2020-06-01 12:30:00.5'",
        "day < '2020-06-01 12:30:00Z'",
        "day < 'infinity'",
        "day > 'epoch'",
        "CAST(day AS DATE) = '2020-06-01' OR CAST(day AS DATE) > ' 2020-06-01 '",
        "day BETWEEN '2019-06-01' AND '2020-06-01'",
        "CAST(day AS DATE) NOT IN ('2020-06-01', '2020-06-02')",
        "day > TIMESTAMP '2020-06-01 12:00:00' - INTERVAL 3 MONTH",
        "DATEDIFF('day', '2020-06-01', day) > 3",
        "COALESCE(day, '2020-06-01') > '2020-01-01'",
    ],
)
def test_dates_that_there_are_compare_as_before(condition: str) -> None:
    sql = f"SELECT COUNT(*) AS n FROM stays WHERE {condition}"
    (row,) = answer_of(sql, TABLES)["rows"]
    assert (row["n"],) == pooled_answer(sql, ROWS)[0]
    assert row["n"] >= 10


@pytest.mark.parametrize(
    "condition",
    [
        "note < '2024-13-01'",
        "note <> '2024-13-01'",
        "ward NOT IN ('2024-13-01', '2020-02-30')",
        "CAST(day AS TEXT) < '2024-13-01'",
        "day IS NULL OR CAST(day AS TEXT) || '!' < '2024-13-01'",
        "CASE WHEN note < '2024-13-01' THEN day ELSE '2020-06-01' END > '2018-01-01'",
    ],
)
def test_what_is_compared_with_a_text_need_be_no_date(condition: str) -> None:
    sql = f"SELECT COUNT(*) AS n FROM stays WHERE {condition}"
    (row,) = answer_of(sql, TABLES)["rows"]
    assert (row["n"],) == pooled_answer(sql, ROWS)[0]
    assert row["n"] >= 10


def test_dates_in_a_join_are_checked_too() -> None:
    from planted_tables import answer_of_copies, answer_of_two

    with pytest.raises(WinnowError, match="'2024-13-01' is not a date"):
        answer_of_copies("SELECT COUNT(*) AS n FROM stays JOIN places ON number = 1 AND day > '2024-13-01'")
    with pytest.raises(WinnowError, match="'2024-13-01' is not a date"):
        answer_of_two(
            "SELECT COUNT(*) AS n FROM (SELECT day FROM stays UNION ALL SELECT day FROM visits) u "
            "WHERE day > '2024-13-01'"
        )


def test_no_step_is_taken_and_nothing_is_spent() -> None:
    question = read_question(
        {"kind": "query", "sql": "SELECT COUNT(*) AS n FROM stays WHERE day > '2024-13-01'", "epsilon": 1.0}
    )
    happened = list[Any]()
    tables = {f"owner {place}": table for place, table in enumerate(TABLES)}
    with pytest.raises(WinnowError, match="'2024-13-01' is not a date"):
        ask_owners(question, tables, terms_of(3), on_event=happened.append)
    assert not [event for event in happened if type(event).__name__ in ("Released", "RoundFinished")]


@pytest.mark.parametrize("options", [(), ("--explain",), ("--epsilon", "1")])
def test_the_command_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    columns = 'visited = { level = "protected", type = "date" }\nclinic = "public"'
    declared = f'[tables.visits]\nfile = "visits.csv"\nowner = "clinic"\n[tables.visits.columns]\n{columns}\n'
    (tmp_path / "federation.toml").write_text(declared)
    days = arrow.array([18_000 * DAY + place * DAY for place in range(60)], arrow.timestamp("us")).to_pylist()
    lines = [f"{'north' if place % 2 else 'south'},{day:%Y-%m-%d}" for place, day in enumerate(days)]
    (tmp_path / "visits.csv").write_text("\n".join(["clinic,visited", *lines]))
    monkeypatch.chdir(tmp_path)
    sql = "SELECT COUNT(*) AS n FROM visits WHERE visited > '{}'"
    told = call(capsys, "query", sql.format("2019-05-01"), *options)
    assert told.code == 0, told.err
    refused = call(capsys, "query", sql.format("2024-13-01"), *options)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.strip() == f"winnow: error: '2024-13-01' is not a date; {HINT} (line 1)"
    assert questions.query(sql.format("2019-05-01")).rows
