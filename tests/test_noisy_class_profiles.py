"""Profiles by class with noise: how far apart two clients can be, by trying all; and what is read off the noise."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from winnow.learn.profile_by_class import ClassProfile, ProfileClasses, class_divergence, class_profile_fault
from winnow.learn.representation_profile import StreamingMoments
from winnow.privacy.dp.noisy_class_profiles import bounded_class_sums, noisy_class_profile
from winnow.privacy.dp.noisy_profiles import SENSITIVITY
from world import blobs, prepared

NOISY = 'select.profile_comparison={name="noisy", clip=%s, noise_multiplier=%s}'


def profile_of(x: np.ndarray, classes: np.ndarray, count: int, min_rows: int = 1, step: int = 1) -> ClassProfile:
    """As a client makes it."""
    moments = StreamingMoments(count)
    moments.add(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(classes))
    return ProfileClasses(labels=tuple(range(count)), min_rows=min_rows, count_step=step).told(moments)[0]


def released(x: np.ndarray, classes: np.ndarray, count: int, clip: float) -> np.ndarray:
    """The same from the samples: all of them shortened by one factor, then shares, sums and p·variances by class."""
    short = x / max(clip, np.sqrt(np.mean((x**2).sum(1))))
    parts = [short[classes == c] for c in range(count)]
    shares = np.array([len(part) / len(x) for part in parts])
    first = [part.sum(0) / len(x) for part in parts]
    second = [share * part.var(0) if len(part) else 0 * x[0] for share, part in zip(shares, parts, strict=True)]
    return np.concatenate([shares, np.ravel(first), np.ravel(second)])


def farthest(points: np.ndarray) -> float:
    squares = (points**2).sum(1)
    return float(np.sqrt((squares[:, None] + squares - 2 * points @ points.T).max()))


# Sensitivity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("classes", "values"), [(2, (-3.0, -1.0, 0.0, 0.4, 1.0, 3.0)), (3, (-1.5, 0.0, 1.0, 2.0))])
def test_no_two_small_clients_are_farther_apart_than_the_sensitivity(classes: int, values: tuple[float, ...]) -> None:
    """Whoever replaces all of a client's data by others: every client of one to three samples against every other."""
    samples = [(c, value) for c in range(classes) for value in values]
    points = []
    for size in (1, 2, 3):
        for chosen in combinations_with_replacement(samples, size):
            x, labels = np.array([[value] for _, value in chosen]), np.array([c for c, _ in chosen])
            sums = bounded_class_sums(profile_of(x, labels, classes), size, clip=1.0)
            points.append(sums.vector())
            np.testing.assert_allclose(points[-1], released(x, labels, classes, 1.0), atol=1e-6)
    assert len(points) > 400
    assert farthest(np.array(points)) == pytest.approx(SENSITIVITY, abs=1e-6), "attained, and never more"


def drawn(classes: int = 4, elements: int = 3) -> st.SearchStrategy[tuple[np.ndarray, np.ndarray]]:
    """A client of up to eight samples."""
    return st.integers(1, 8).flatmap(
        lambda n: st.tuples(
            hnp.arrays(np.float64, (n, elements), elements=st.floats(-20, 20, width=32)),
            hnp.arrays(np.int64, n, elements=st.integers(0, classes - 1)),
        )
    )


@settings(max_examples=40, deadline=None)
@given(drawn(), drawn(), st.floats(0.1, 30), st.integers(1, 3), st.integers(1, 3))
def test_nor_are_any_others_whatever_is_left_out_for_too_few_samples(one, other, clip, min_rows, step) -> None:  # type: ignore[no-untyped-def]
    points = [bounded_class_sums(profile_of(x, c, 4, min_rows, step), len(x), clip).vector() for x, c in (one, other)]
    assert np.linalg.norm(points[0] - points[1]) <= SENSITIVITY * (1 + 1e-6)


# Noise, and what is read off it ---------------------------------------------------------------------------------------


def test_the_noise_has_its_law_in_shares_and_means() -> None:
    """One class of half of the samples, with means and variances of zero."""
    rng, found = np.random.default_rng(0), []
    half = ClassProfile(counts=np.array([5000, 5000]), mean=np.zeros((2, 4), "f4"), variance=np.zeros((2, 4), "f4"))
    for _ in range(1000):
        found.append(noisy_class_profile(half, 10_000, clip=3.0, deviation=0.02, rng=rng))
    shares = np.array([each.counts for each in found]) / 10_000
    below_one = shares[shares.sum(1) < 0.999]  # where the noise did not make more than all samples of them
    assert len(below_one) == pytest.approx(500, abs=80)
    noise = np.array([each.mean[0] * n / 3.0 for each, n in zip(found, shares[:, 0], strict=True)])
    assert stats.kstest(noise[shares.sum(1) < 0.999].ravel(), "norm", args=(0, 0.02)).pvalue > 1e-3
    assert below_one.sum(1).std() < 0.02 * np.sqrt(2)
    assert (below_one[:, 0] - below_one[:, 1]).std() == pytest.approx(0.02 * np.sqrt(2), rel=0.15)


def test_next_to_no_noise_leaves_the_profile_as_it_is() -> None:
    rng = np.random.default_rng(1)
    labels = np.repeat([0, 1, 3], [40, 9, 51])
    made = profile_of(rng.normal(size=(100, 6)), labels, 4)
    found = noisy_class_profile(made, 100, clip=50.0, deviation=1e-10, rng=rng)
    assert found.counts.tolist() == [40, 9, 0, 51]
    np.testing.assert_allclose(found.mean, made.mean, atol=1e-5)
    np.testing.assert_allclose(found.variance, made.variance, atol=1e-4)


def test_a_class_that_noise_could_have_made_counts_as_not_told() -> None:
    rng = np.random.default_rng(2)
    made = profile_of(rng.normal(size=(200, 3)), np.repeat([0, 1], [190, 10]), 10)
    told = np.array([noisy_class_profile(made, 200, 2.0, 0.05, rng).counts > 0 for _ in range(2000)])
    assert told[:, 0].all()
    assert told[:, 1].mean() == pytest.approx(stats.norm.sf(3 - 10 / 200 / 0.05), abs=0.015)
    assert told[:, 2:].mean() == pytest.approx(stats.norm.sf(3), abs=0.001)


@settings(max_examples=30, deadline=None)
@given(drawn(), st.floats(1e-6, 50), st.floats(1e-3, 100), st.integers(0, 2**31))
def test_whatever_the_noise_the_server_can_work_with_it(data, deviation, clip, seed) -> None:  # type: ignore[no-untyped-def]
    x, labels = data
    found = noisy_class_profile(profile_of(x, labels, 4), len(x), clip, deviation, np.random.default_rng(seed))
    assert class_profile_fault(found.arrays(), (4, 3), len(x)) is None
    reference = profile_of(np.random.default_rng(0).normal(size=(80, 3)), np.arange(80) % 4, 4)
    (divergence,) = class_divergence([found], reference)
    assert np.isnan(divergence) == (not found.counts.any())


# In a run -------------------------------------------------------------------------------------------------------------


def scores(*sets: str) -> np.ndarray:
    with prepared(*sets, algorithm="fedprof-by-class", rounds=1, dataset=blobs(900)) as ready:
        return next(event.scores for event in ready.training.run(ready.federation) if event.kind == "scored")


def test_with_little_noise_selection_is_what_it_is_without_and_with_much_it_is_blind() -> None:
    plain = scores()
    np.testing.assert_allclose(scores(NOISY % (20.0, 1e-10)), plain, atol=1e-4)
    assert np.abs(scores(NOISY % (10.0, 0.01)) - plain).max() > 0.05
    assert len({*scores(NOISY % (10.0, 1.0)).tolist()}) == 1, "nothing is told, so all are alike"
