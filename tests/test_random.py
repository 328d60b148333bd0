"""One seed, named streams."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from winnow.core import stream

NAMES = st.lists(st.one_of(st.integers(), st.text(max_size=5)), min_size=1, max_size=4)


@given(seed=st.integers(min_value=0), names=NAMES)
def test_a_stream_repeats(seed: int, names: list[str | int]) -> None:
    assert stream(seed, *names).random() == stream(seed, *names).random()


@given(seed=st.integers(min_value=0), names=NAMES, others=NAMES)
def test_other_names_give_other_numbers(seed: int, names: list[str | int], others: list[str | int]) -> None:
    same = [(type(n), n) for n in names] == [(type(n), n) for n in others]
    assert (stream(seed, *names).random() == stream(seed, *others).random()) == same


def test_streams_are_uncorrelated_across_rounds() -> None:
    draws = np.array([stream(0, "select", r).random(64) for r in range(200)])
    correlations = np.corrcoef(draws)[~np.eye(200, dtype=bool)]
    assert abs(correlations.mean()) < 0.005
    assert abs(draws.mean() - 0.5) < 0.01
