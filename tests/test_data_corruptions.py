"""Corruptions: who is spoiled, how, and that nobody else is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import kstest

from winnow.core import DataError
from winnow.data import (
    Blur,
    Corruption,
    DataSettings,
    FeatureNoise,
    FlippedLabels,
    IrrelevantFeatures,
    Pollution,
    SaltAndPepper,
    federate,
    from_arrays,
)

RNG = np.random.default_rng(0)
IMAGES = from_arrays(RNG.uniform(-1, 2, (400, 3, 12, 12)), RNG.integers(0, 4, 400), name="images")
TABLE = from_arrays(
    RNG.uniform((0, -5, 10), (1, 5, 11), (400, 3)), RNG.uniform(0, 3, (400, 2)), name="table", scale="none"
)
EVERY = [
    IrrelevantFeatures(fraction=0.5),
    Blur(fraction=0.5),
    SaltAndPepper(fraction=0.5),
    FeatureNoise(fraction=0.5),
    Pollution(fraction=0.5),
    FlippedLabels(fraction=0.5),
]


def spoil(dataset, *corruptions, clients=20, seed=0):
    """The same clients before and after."""
    plain = DataSettings(clients=clients, reference=10, test=10)
    spoiled = plain.model_copy(update={"corruptions": corruptions})
    return federate(dataset, plain, seed), federate(dataset, spoiled, seed)


def fully(dataset, corruption):
    """Samples of all clients before and after, when every client is spoiled."""
    before, after = spoil(dataset, corruption.model_copy(update={"fraction": 1.0}))
    return before.clients, after.clients


def test_every_corruption_is_tested_and_can_be_chosen_by_name():
    assert {each.name for each in EVERY} == set(Corruption.members)
    for corruption in EVERY:
        chosen = DataSettings.model_validate({"corruptions": [corruption.model_dump()]})
        assert chosen.corruptions == (corruption,)


@pytest.mark.parametrize("corruption", EVERY, ids=lambda each: each.name)
def test_only_the_fraction_named_is_touched_and_the_record_says_who(corruption):
    before, after = spoil(IMAGES, corruption)
    touched = [
        not (np.array_equal(before.clients.client(k).x, after.clients.client(k).x))
        or not np.array_equal(before.clients.client(k).y, after.clients.client(k).y)
        for k in range(20)
    ]
    assert sum(touched) == 10
    assert after.conditions.labels == ("clean", corruption.name)
    assert after.conditions.of_client.tolist() == [int(each) for each in touched]


@pytest.mark.parametrize("corruption", EVERY, ids=lambda each: each.name)
def test_reference_test_and_the_set_itself_stay_clean(corruption):
    x, y = IMAGES.x.copy(), IMAGES.y.copy()
    before, after = spoil(IMAGES, corruption)
    assert np.array_equal(before.reference.x, after.reference.x)
    assert np.array_equal(before.test.x, after.test.x)
    assert np.array_equal(before.test.y, after.test.y)
    assert np.array_equal(IMAGES.x, x)
    assert np.array_equal(IMAGES.y, y)


@pytest.mark.parametrize("corruption", EVERY, ids=lambda each: each.name)
def test_spoiling_repeats_under_a_seed_and_keeps_shapes_and_types(corruption):
    before, first = spoil(IMAGES, corruption)
    _, again = spoil(IMAGES, corruption)
    assert np.array_equal(first.clients.x, again.clients.x)
    assert np.array_equal(first.clients.y, again.clients.y)
    assert (first.clients.x.dtype, first.clients.y.dtype) == (before.clients.x.dtype, before.clients.y.dtype)


@given(fractions=st.lists(st.floats(0, 0.3), max_size=3), clients=st.integers(1, 50))
@settings(max_examples=30, deadline=None)
def test_a_client_has_at_most_one_condition_and_counts_are_rounded(fractions, clients):
    kinds = (FeatureNoise, SaltAndPepper, IrrelevantFeatures)
    corruptions = [kind(fraction=fraction) for kind, fraction in zip(kinds, fractions, strict=False)]
    conditions = spoil(TABLE, *corruptions, clients=clients)[1].conditions
    counts = np.bincount(conditions.of_client, minlength=len(corruptions) + 1)
    assert counts.sum() == clients
    for count, corruption in zip(counts[1:], corruptions, strict=True):
        assert abs(count - corruption.fraction * clients) <= 1


def test_one_corruption_does_not_shift_the_noise_of_another():
    _, alone = spoil(TABLE, FeatureNoise(fraction=0.5))
    _, together = spoil(TABLE, FeatureNoise(fraction=0.5), Pollution(fraction=0.25))
    noisy = np.flatnonzero(alone.conditions.of_client == 1)
    assert np.array_equal(noisy, np.flatnonzero(together.conditions.of_client == 1))
    for k in noisy:
        assert np.array_equal(alone.clients.client(k).x, together.clients.client(k).x)


def test_the_same_corruption_twice_is_told_apart_by_its_settings():
    _, after = spoil(TABLE, FeatureNoise(fraction=0.5, sd=0.1), FeatureNoise(fraction=0.5, sd=0.4))
    assert after.conditions.labels == ("clean", "noise sd 0.1", "noise sd 0.4")
    assert np.bincount(after.conditions.of_client).tolist() == [0, 10, 10]


def test_noise_has_the_deviation_asked_for():
    before, after = fully(TABLE, FeatureNoise(fraction=1, sd=0.25))
    assert kstest((after.x - before.x).ravel() / 0.25, "norm").pvalue > 0.001


def test_irrelevant_tables_are_uniform_over_each_range():
    before, after = fully(TABLE, IrrelevantFeatures(fraction=1))
    unit = (after.x - TABLE.x.min(axis=0)) / np.ptp(TABLE.x, axis=0)
    assert all(kstest(column, "uniform").pvalue > 0.001 for column in unit.T)
    assert np.array_equal(before.y, after.y)


def test_irrelevant_images_are_smooth_unrelated_and_in_range():
    before, after = fully(IMAGES, IrrelevantFeatures(fraction=1))
    low, high = (bound(IMAGES.x, axis=(0, 2, 3)) for bound in (np.min, np.max))
    assert (after.x.min(axis=(0, 2, 3)) >= low - 1e-5).all()
    assert (after.x.max(axis=(0, 2, 3)) <= high + 1e-5).all()
    assert np.abs(np.diff(after.x)).mean() < 0.5 * np.abs(np.diff(before.x)).mean()
    assert abs(np.corrcoef(after.x.ravel(), before.x.ravel())[0, 1]) < 0.05


def test_blur_convolves_each_channel_with_a_gaussian():
    point = np.zeros((60, 2, 15, 15), dtype=np.float32)
    point[:, 0, 7, 7] = 1
    dataset = from_arrays(point, np.arange(60) % 2, scale="none")
    after = fully(dataset, Blur(fraction=1, sigma=1.5))[1]
    offsets = np.arange(-7, 8)
    kernel = np.exp(-(offsets**2) / (2 * 1.5**2))
    kernel /= kernel.sum()
    expected = np.outer(kernel, kernel)
    assert np.allclose(after.x[0, 0], expected, atol=2e-3)
    assert (after.x[:, 1] == 0).all()


def test_blur_is_refused_for_tables():
    with pytest.raises(DataError, match="blur needs images"):
        spoil(TABLE, Blur(fraction=0.5))


def test_salt_and_pepper_hits_whole_pixels_with_black_or_white():
    before, after = fully(IMAGES, SaltAndPepper(fraction=1, density=0.3))
    low, high = (bound(IMAGES.x, axis=(0, 2, 3))[None, :, None, None] for bound in (np.min, np.max))
    pepper, salt = (after.x == low).all(axis=1), (after.x == high).all(axis=1)
    assert abs(pepper.mean() - 0.15) < 0.01
    assert abs(salt.mean() - 0.15) < 0.01
    untouched = ~(pepper | salt)[:, None].repeat(3, axis=1)
    assert np.array_equal(after.x[untouched], before.x[untouched])


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_pollution_is_finite_and_far_out_of_range_unless_told_otherwise(share):
    before, after = fully(TABLE, Pollution(fraction=1, share=share, max_distance=10))
    low, high = TABLE.x.min(axis=0), TABLE.x.max(axis=0)
    changed = after.x != before.x
    distance = np.maximum(low - after.x, after.x - high) / (high - low)
    assert np.isfinite(after.x).all()
    assert abs(changed.mean() - share) < 0.05
    assert (distance[changed] >= 0.999).all()
    assert (distance[changed] <= 10.001).all()


@pytest.mark.parametrize(
    ("kind", "finite", "nan", "inf"),
    [("nan", 0, 1, 0), ("inf", 0, 0, 1), ("mixed", 1 / 3, 1 / 3, 1 / 3)],
)
def test_pollution_of_other_kinds(kind, finite, nan, inf):
    x = fully(TABLE, Pollution(fraction=1, kind=kind))[1].x
    shares = (np.isfinite(x).mean(), np.isnan(x).mean(), np.isinf(x).mean())
    assert np.allclose(shares, (finite, nan, inf), atol=0.06)


def test_flipped_classes_are_all_other_classes_alike():
    before, after = fully(IMAGES, FlippedLabels(fraction=1))
    assert (before.y != after.y).all()
    shift = np.bincount((after.y - before.y) % 4, minlength=4)
    assert shift[0] == 0
    assert shift[1:].min() > 0.7 * len(before.y) / 3
    assert np.array_equal(before.x, after.x)


def test_flipped_targets_are_mirrored_within_their_range():
    before, after = fully(TABLE, FlippedLabels(fraction=1))
    assert np.allclose(after.y, TABLE.y.min(axis=0) + TABLE.y.max(axis=0) - before.y)


def test_fractions_above_one_together_are_refused():
    with pytest.raises(ValidationError, match=r"sum to 1\.1"):
        DataSettings(corruptions=(FeatureNoise(fraction=0.6), Pollution(fraction=0.5)))


@pytest.mark.parametrize("corruption", EVERY, ids=lambda each: each.name)
def test_tokens_admit_only_what_leaves_features_alone(corruption):
    tokens = from_arrays(RNG.integers(0, 30, (400, 6)), RNG.integers(0, 4, 400), tokens=True, name="tokens")
    if corruption.name == "flipped-labels":
        before, after = fully(tokens, corruption)
        assert after.x.dtype == np.int64
        assert np.array_equal(before.x, after.x)
        assert (before.y != after.y).all()
        return
    with pytest.raises(DataError, match=f"corruption {corruption.name} needs numeric features, not tokens"):
        spoil(tokens, corruption)
