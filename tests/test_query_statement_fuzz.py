"""Statements that nobody would write: an answer or one line, never a traceback."""

import pytest

from statement_fuzz import answered
from winnow.analytics.question import read_question
from winnow.core import ConfigError


def test_a_function_without_arguments_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^FLOOR\(\) has too few arguments \(line 1\)$"):
        read_question({"kind": "query", "sql": "SELECT COUNT(*) FROM stays WHERE FLOOR() > 1"})


def test_what_is_written_like_a_number_and_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^'1e999.5' is not a number \(line 1\)$"):
        read_question({"kind": "query", "sql": "SELECT COUNT(*) FROM a, b WHERE DISTANCE(x, y, u, v) < 1e999.5"})


def test_a_statement_on_which_fuzzing_failed_is_answered_or_refused() -> None:
    answered(12_027)  # WHERE YEAR(NULL) = 2020: the year of nothing has no least and no largest value
    answered(94_532)  # SELECT NULL: the type of nothing is no type


def test_fuzzed_statements_are_answered_or_refused_in_one_line() -> None:
    assert sum(answered(seed) for seed in range(200)) > 5


PARTS = 20


@pytest.mark.slow(part="attacks")
@pytest.mark.parametrize("part", range(PARTS))
def test_a_hundred_thousand_fuzzed_statements_are_answered_or_refused_in_one_line(part: int) -> None:
    """In parts, which several processes can share."""
    size = 100_000 // PARTS
    assert sum(answered(seed) for seed in range(part * size, (part + 1) * size)) > size // 50
