"""What a user may have meant."""

import pytest

from winnow.core import suggest

FRUIT = ("pear", "apple", "cherry")


@pytest.mark.parametrize(
    ("word", "at_most", "text"),
    [
        ("aple", None, "did you mean 'apple'?"),
        ("zzz", None, "valid: apple, cherry, pear"),
        ("pair", 2, "did you mean 'pear'?"),
        ("zzz", 2, "valid: apple, cherry, …"),
        ("zzz", 3, "valid: apple, cherry, pear"),
    ],
)
def test_the_nearest_choice_or_all_of_them(word, at_most, text):
    assert suggest(word, FRUIT, at_most=at_most) == text


def test_those_equally_near_are_all_named():
    assert suggest("fedpro", ("fedprox", "fedavg", "fedprof")) == "did you mean 'fedprof' or 'fedprox'?"


def test_names_that_look_like_numbers_are_quoted():
    assert suggest("fc", ("0", "2.1", "head")) == "valid: '0', '2.1', 'head'"


def test_where_many_are_equally_near_all_choices_are_listed():
    tables = ("table1", "table2", "table3", "table4", "figure1")
    assert suggest("table9", tables) == "valid: figure1, table1, table2, table3, table4"
    assert suggest("table9", tables[:3]) == "did you mean 'table1' or 'table2' or 'table3'?"
