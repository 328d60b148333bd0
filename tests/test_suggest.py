"""What a user may have meant."""

import pytest

from winnow.core import suggest

FRUIT = ("pear", "apple", "cherry")


@pytest.mark.parametrize(
    ("word", "at_most", "text"),
    [
        ("aple", None, "did you mean 'apple'? valid: apple, cherry, pear"),
        ("zzz", None, "valid: apple, cherry, pear"),
        ("pair", 2, "did you mean 'pear'? valid: apple, cherry, …"),
        ("zzz", 3, "valid: apple, cherry, pear"),
    ],
)
def test_the_nearest_choice_comes_first(word, at_most, text):
    assert suggest(word, FRUIT, at_most=at_most) == text
