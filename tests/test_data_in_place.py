"""A data set that is used up on being spread gives the clients the same samples as a copy of it."""

import sys

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from winnow.data import Blur, DataSettings, FeatureNoise, Pollution, federate, from_arrays

SPOILED = DataSettings(
    clients=7, reference=30, test=20, corruptions=(FeatureNoise(fraction=0.3, sd=0.5), Pollution(fraction=0.4))
)


def table():
    rng = np.random.default_rng(1)
    return from_arrays(
        rng.normal(size=(300, 4)).astype(np.float32), rng.integers(0, 3, 300), name="table", scale="none"
    )


@pytest.mark.parametrize(
    "settings", [SPOILED, SPOILED.model_copy(update={"corruptions": ()})], ids=["spoiled", "as is"]
)
def test_every_client_has_the_same_samples_as_in_a_copy(settings):
    copied, used = federate(table(), settings, 5), federate(table(), settings, 5, in_place=True)
    assert np.array_equal(copied.conditions.of_client, used.conditions.of_client)
    for client in range(settings.clients):
        assert np.array_equal(copied.clients.client(client).x, used.clients.client(client).x)
        assert np.array_equal(copied.clients.client(client).y, used.clients.client(client).y)
    for name in ("reference", "test"):
        assert np.array_equal(getattr(copied, name).x, getattr(used, name).x)


def test_no_second_copy_is_made_in_place_and_nothing_changes_otherwise():
    kept, used = table(), table()
    federate(kept, SPOILED, 5)
    spread = federate(used, SPOILED, 5, in_place=True)
    assert np.array_equal(kept.x, table().x)
    assert np.shares_memory(spread.clients.x, used.x)
    assert not np.array_equal(used.x, table().x)


def test_arrays_that_cannot_be_written_are_copied():
    dataset = table()
    dataset.x.flags.writeable = False
    spread = federate(dataset, SPOILED, 5, in_place=True)
    assert not np.shares_memory(spread.clients.x, dataset.x)
    assert np.array_equal(spread.clients.client(2).x, federate(table(), SPOILED, 5).clients.client(2).x)


def in_chunks(monkeypatch, size, corruption):
    monkeypatch.setattr(sys.modules["winnow.data.federate"], "CHUNK_BYTES", size)
    images = np.random.default_rng(2).normal(size=(90, 2, 9, 14)).astype(np.float32)
    settings = DataSettings(clients=3, reference=5, test=5, corruptions=(corruption,))
    return images, federate(from_arrays(images, np.arange(90) % 3), settings, 0)


def test_a_blur_is_a_gaussian_filter_whatever_the_chunks(monkeypatch):
    blur = Blur(fraction=1, sigma=1.7)
    images, whole = in_chunks(monkeypatch, 1 << 30, blur)
    _, pieces = in_chunks(monkeypatch, 3_000, blur)
    assert np.array_equal(whole.clients.x, pieces.clients.x)
    expected = gaussian_filter(images.astype(np.float64), sigma=(0, 0, 1.7, 1.7), mode="nearest")
    for image in whole.clients.x[:20]:
        assert np.abs(expected - image).reshape(len(expected), -1).max(axis=1).min() < 1e-5
