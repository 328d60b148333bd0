"""Chance for deployments: it has the laws that it should have, and nobody can repeat or foresee it."""

import os
from pathlib import Path
from time import process_time

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from scipy import stats

import winnow
from winnow.learn.secure_randomness import secure_generator, secure_stream

DRAWN = 50_000
SURE = 1e-5
"""A sound generator fails one of these tests in so many runs."""


@pytest.mark.parametrize(
    ("drawn", "law"),
    [
        (lambda g: g.random(DRAWN), "uniform"),
        (lambda g: g.random(DRAWN, np.float32), "uniform"),
        (lambda g: g.normal(0.0, 1.0, DRAWN), "norm"),
        (lambda g: (g.normal(3.0, 2.0, (DRAWN // 5, 5)) - 3.0).reshape(-1) / 2.0, "norm"),
        (lambda g: g.laplace(0.0, 1.0, DRAWN), "laplace"),
        (lambda g: (g.laplace(1.0, 4.0, DRAWN + 1) - 1.0) / 4.0, "laplace"),
        (lambda g: g.standard_normal(DRAWN // 10), "norm"),  # word by word, as numpy asks for them
        (lambda g: np.array([g.random() for _ in range(2000)]), "uniform"),
        (lambda g: np.array([g.normal() for _ in range(2000)]), "norm"),
    ],
)
def test_draws_have_their_laws(drawn: object, law: str) -> None:
    found = drawn(secure_generator())  # type: ignore[operator]
    assert stats.kstest(found, law).pvalue > SURE


def test_the_halves_of_a_pair_of_normals_have_nothing_in_common() -> None:
    halves = secure_generator().normal(0.0, 1.0, 2 * DRAWN).reshape(2, -1)
    assert stats.pearsonr(*halves).pvalue > SURE
    assert stats.pearsonr(*(halves**2)).pvalue > SURE


@pytest.mark.parametrize("p", [0.02, 0.3])
def test_waiting_times_have_their_law(p: float) -> None:
    found = secure_generator().geometric(p, DRAWN)
    edges = np.arange(1, int(stats.geom.ppf(0.999, p)))
    seen = np.append([(found == edge).sum() for edge in edges], (found > edges[-1]).sum())
    expected = DRAWN * np.append(stats.geom.pmf(edges, p), stats.geom.sf(edges[-1], p))
    assert found.dtype == np.int64
    assert stats.chisquare(seen, expected).pvalue > SURE


def test_orders_are_permutations_and_all_as_likely() -> None:
    chance = secure_generator()
    orders = [tuple(chance.permutation(3)) for _ in range(3000)]
    counts = [orders.count(each) for each in sorted(set(orders))]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > SURE


def test_integers_are_all_as_likely() -> None:
    found = secure_generator().integers(0, 10, DRAWN)
    assert stats.chisquare(np.bincount(found, minlength=10)).pvalue > SURE


def test_no_two_generators_agree() -> None:
    draws = np.array([secure_generator().random(4) for _ in range(50)])
    assert len(np.unique(draws)) == draws.size
    assert secure_stream(0, "noise").random() != secure_stream(0, "noise").random()


def test_the_numbers_are_the_keystream_of_a_key_of_256_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known answers: the same key in the hands of the library itself gives the same numbers, whichever way they go."""
    asked: list[int] = []

    def key(count: int) -> bytes:
        asked.append(count)
        return bytes(range(count))

    monkeypatch.setattr(os, "urandom", key)
    words = np.frombuffer(Cipher(AES(key(32)), CTR(bytes(16))).encryptor().update(bytes(8 * 512)), np.uint64)
    np.testing.assert_array_equal(secure_generator().random(512), (words >> np.uint64(11)) * 2.0**-53)
    one_by_one = secure_generator()
    assert {one_by_one.random() for _ in range(512)} == {*((words >> np.uint64(11)) * 2.0**-53).tolist()}
    assert asked == [32, 32, 32]


def test_a_million_normals_are_quick() -> None:
    def seconds(chance: np.random.Generator) -> float:
        begun = process_time()
        chance.normal(0.0, 1.0, 1_000_000)
        return process_time() - begun

    ours, numpys = secure_generator(), np.random.default_rng(0)
    took = [(seconds(ours), seconds(numpys)) for _ in range(5)]
    assert min(secure for secure, _ in took) < 10 * min(plain for _, plain in took), "it is about 2.5 times"


def test_nothing_that_protects_anybody_is_drawn_from_a_seed_that_can_be_tried() -> None:
    """torch's generators keep 32 bits of a seed, and numpy's are no ciphers."""
    private = Path(winnow.__file__).parent / "privacy"
    for file in private.rglob("*.py"):
        for word in ("manual_seed", "torch.Generator", "torch.normal", "torch.rand", "default_rng"):
            assert word not in file.read_text(), f"{file.name}: {word}"


def test_dp_sgd_draws_its_noise_from_the_sites_randomness() -> None:
    """Not from a seed that it draws: chances that differ in their normals alone give different updates."""
    from types import SimpleNamespace

    from torch import nn

    from winnow.learn.local_optimiser import Sgd
    from winnow.privacy.dp import DpSgd

    class Chance:
        def __init__(self, seed: int) -> None:
            self._normals = np.random.default_rng(seed)

        def integers(self, *_: object) -> int:
            return 7

        def random(self, count: int) -> np.ndarray:
            return np.zeros(count)

        def normal(self, mean: float, deviation: float, size: tuple[int, ...]) -> np.ndarray:
            return self._normals.normal(mean, deviation, size)

    x, y = torch.zeros(8, 20), torch.zeros(8, 1)
    net = nn.Linear(20, 1)
    data = SimpleNamespace(device=torch.device("cpu"), rows_of=lambda c: np.arange(8), samples=lambda r: (x[r], y[r]))
    execution = SimpleNamespace(module=net, loss=lambda outputs, targets: (outputs - targets).square().mean(1))
    training = SimpleNamespace(
        execution=execution, seed=0, round=1, rate=0.1, data=data, local=Sgd(batch_size=8, epochs=1)
    )
    start = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    found = []
    for seed in (1, 1, 2):
        training.randomness = lambda *names, seed=seed: Chance(seed)
        found.append(DpSgd(noise_multiplier=2.0, clip=0.5)._trained(training, 0, start)["weight"] - start["weight"])
    assert torch.equal(found[0], found[1])
    expected = -0.1 * np.random.default_rng(2).normal(0.0, 2.0 * 0.5 / 8, (1, 20))
    np.testing.assert_allclose(found[2].numpy(), expected, atol=1e-6)
