"""What each filter does to an update, against a calculation by hand; and what is refused."""

import numpy as np
import pytest
import torch

from winnow.core import ConfigError
from winnow.privacy.filters import Clip, Exclude, Percentile, SparseVector
from world import experiment, prepared

SENT = {"fc.weight": torch.zeros(20, 10), "fc.bias": torch.zeros(20)}


def changes(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, 220).astype(np.float32)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def one_update(*sets: str, algorithm: str = "fedavg"):
    """What one client trained, with and without these settings."""
    found = []
    for options in (sets, ()):
        ready = prepared(*options, algorithm=algorithm)
        tasks = ready.training.tasks([0], ready.federation.population.sizes, round=1)
        with ready.federation.dispatch(tasks) as exchange:
            (reply,) = exchange
        found.append({name: reply.payload["model"][name] - t for name, t in ready.training.model.items()})
    return found


class TestClip:
    def test_long_updates_are_shortened_and_short_ones_left_alone(self) -> None:
        vector = changes()
        length = np.linalg.norm(vector)
        clipped = Clip(norm=1.0).altered(vector, SENT, rng())
        np.testing.assert_allclose(clipped, vector / length, rtol=1e-5)
        assert Clip(norm=100.0).altered(vector, SENT, rng()) is vector

    def test_a_short_update_is_bitwise_what_was_trained(self) -> None:
        clipped, plain = one_update('filters=[{name = "clip", norm = 1e6}]')
        assert all(torch.equal(clipped[name], plain[name]) for name in plain)


class TestExclude:
    def test_named_variables_come_back_as_sent(self) -> None:
        altered = Exclude(names=("*.bias",)).altered(changes(), SENT, rng())
        assert not altered[200:].any()
        assert np.array_equal(altered[:200], changes()[:200])

    def test_the_rest_is_learnt(self) -> None:
        without, plain = one_update('filters=[{name = "exclude", names = ["*.bias"]}]')
        for name, change in without.items():
            assert not change.any() if name.endswith("bias") else torch.allclose(change, plain[name], atol=1e-6)

    @pytest.mark.parametrize(
        ("names", "message"),
        [
            ('["*.bais"]', r"filters: exclude: nothing in the model is called '\*.bais'; did you mean"),
            ('["*"]', "nothing could be learnt"),
        ],
    )
    def test_names_that_cannot_work_are_refused(self, names: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            prepared(f'filters=[{{name = "exclude", names = {names}}}]', algorithm="fedavg")


class TestPercentile:
    def test_the_largest_changes_are_shared_truncated(self) -> None:
        vector = changes()
        altered = Percentile(percentile=80.0, gamma=1.5).altered(vector, SENT, rng())
        bar = np.sort(np.abs(vector))[-44]
        for before, after in zip(vector, altered, strict=True):
            assert after == (0 if abs(before) < bar else np.clip(before, -1.5, 1.5))
        assert (altered != 0).sum() == 44


class TestSparseVector:
    def test_a_large_budget_tells_the_bounded_changes_exactly(self) -> None:
        told = SparseVector(epsilon=1e12, share=1.0, gamma=0.5, threshold=0.0).altered(changes(), SENT, rng())
        np.testing.assert_allclose(told, np.clip(changes(), -0.5, 0.5), atol=1e-6)

    def test_the_threshold_chooses(self) -> None:
        vector = np.where(np.arange(220) % 10 == 0, 1.0, 0.01).astype(np.float32)
        told = SparseVector(epsilon=1e9, share=0.5, gamma=1.0, threshold=0.5).altered(vector, SENT, rng())
        assert np.array_equal(told != 0, vector == 1.0)

    def test_no_more_than_the_share_is_told(self) -> None:
        told = SparseVector(epsilon=1.0, share=0.05, gamma=1.0).altered(changes(), SENT, rng())
        assert 0 < (told != 0).sum() <= 11
        assert np.abs(told).max() <= 1.0

    def test_replies_are_as_likely_under_any_other_update(self) -> None:
        """The promise itself, on an update of one change, where both outcomes can be counted: silence, and a sign."""
        filtering, draws = SparseVector(epsilon=1.0, share=1.0, gamma=1.0, threshold=0.5), 12_000
        source, sent = rng(1), {"w": torch.zeros(1)}
        counts = []
        for value in (-1.0, 0.0, 1.0):
            told = [filtering.altered(np.array([value], np.float32), sent, source)[0] for _ in range(draws)]
            shares = np.array([np.equal(told, 0).mean(), np.greater(told, 0).mean(), np.less(told, 0).mean()])
            counts.append(shares)
        worst = max(float((one / other).max()) for one in counts for other in counts)
        assert 1.15 < worst < np.e * 1.06  # noticeably different, and never beyond the budget

    def test_the_noise_is_that_of_its_budget(self) -> None:
        """Told values are Δ + Lap(2cγ/ε₃), ε₃ = ε/2: with a bound far away the truncation does not show."""
        filtering = SparseVector(epsilon=4000.0, share=1.0, gamma=1.0, threshold=0.0)
        sent, source, zeros = {"w": torch.zeros(100)}, rng(2), np.full(100, 0.5, np.float32)
        told = np.concatenate([filtering.altered(zeros, sent, source) for _ in range(200)])
        noise = told[told != 0] - 0.5
        assert np.abs(noise).mean() == pytest.approx(2 * 100 * 1.0 / 2000, rel=0.05)

    def test_counters_are_not_told(self) -> None:
        sent = {"w": torch.zeros(3), "batches": torch.tensor(5)}
        assert SparseVector(epsilon=1.0).buffers({**sent, "batches": torch.tensor(9)}, sent)["batches"].item() == 5


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ('[{name = "clpi", norm = 1.0}]', r"filters\[0\].name = 'clpi' is unknown; did you mean 'clip'"),
        ('[{name = "clip"}]', r"filters\[0\].norm is missing"),
        ('[{name = "clip", norm = 0.0}]', r"filters\[0\].norm = 0.0: input should be greater than 0"),
        ('[{name = "clip", norm = 1.0, gamma = 1.0}]', r"unknown key filters\[0\].gamma; it belongs to"),
        ('[{name = "sparse-vector", epsilon = 0.0}]', r"filters\[0\].epsilon = 0.0"),
        ('[{name = "exclude", names = []}]', r"filters\[0\].names"),
        ('"clip"', "filters = 'clip': must be a list"),
        ('[{name = "compress", numbers = "int3"}]', r"filters\[0\].numbers.name = 'int3' is unknown; valid"),
        ('[{name = "compress"}, {name = "clip", norm = 1.0}]', "filters: compress must come last; 'clip' cannot"),
        ('[{name = "compress"}, {name = "compress"}]', "filters: compress must come last; 'compress' cannot"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(option: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        experiment(f"filters={option}")
    assert "\n" not in str(refused.value)
