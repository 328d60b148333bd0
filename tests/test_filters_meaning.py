"""What each filter does to an update, against a calculation by hand; and what is refused."""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad

from winnow.core import ConfigError, Failure, Reply, Task
from winnow.learn.secure_randomness import secure_stream
from winnow.learn.update_filters import TwoSidedFilter
from winnow.privacy.dp import LocalDp
from winnow.privacy.filters import Clip, ExcludeVariables, PercentilePrivacy, SparseVectorTechnique
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
        altered = ExcludeVariables(variables=("*.bias",)).altered(changes(), SENT, rng())
        assert not altered[:20].any(), "changes are in the order of names"
        assert np.array_equal(altered[20:], changes()[20:])

    def test_the_rest_is_learnt(self) -> None:
        without, plain = one_update('filters=[{name = "exclude", variables = ["*.bias"]}]')
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
            prepared(f'filters=[{{name = "exclude", variables = {names}}}]', algorithm="fedavg")


class TestPercentile:
    def test_the_largest_changes_are_shared_truncated(self) -> None:
        vector = changes()
        altered = PercentilePrivacy(percentile=80.0, gamma=1.5).altered(vector, SENT, rng())
        bar = np.sort(np.abs(vector))[-44]
        for before, after in zip(vector, altered, strict=True):
            assert after == (0 if abs(before) < bar else np.clip(before, -1.5, 1.5))
        assert (altered != 0).sum() == 44


class TestSparseVector:
    def test_a_large_budget_tells_the_bounded_changes_exactly(self) -> None:
        told = SparseVectorTechnique(epsilon=1e12, fraction=1.0, gamma=0.5, threshold=0.0).altered(
            changes(), SENT, rng()
        )
        np.testing.assert_allclose(told, np.clip(changes(), -0.5, 0.5), atol=1e-6)

    def test_the_threshold_chooses(self) -> None:
        vector = np.where(np.arange(220) % 10 == 0, 1.0, 0.01).astype(np.float32)
        told = SparseVectorTechnique(epsilon=1e9, fraction=0.5, gamma=1.0, threshold=0.5).altered(vector, SENT, rng())
        assert np.array_equal(told != 0, vector == 1.0)

    def test_no_more_than_the_share_is_told(self) -> None:
        told = SparseVectorTechnique(epsilon=1.0, fraction=0.05, gamma=1.0).altered(changes(), SENT, rng())
        assert 0 < (told != 0).sum() <= 11
        assert np.abs(told).max() <= 1.0

    def test_replies_are_as_likely_under_any_other_update(self) -> None:
        """The promise itself, on an update of one change, where both outcomes can be counted: silence, and a sign."""
        filtering, draws = SparseVectorTechnique(epsilon=1.0, fraction=1.0, gamma=1.0, threshold=0.5), 12_000
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
        filtering = SparseVectorTechnique(epsilon=4000.0, fraction=1.0, gamma=1.0, threshold=0.0)
        sent, source, zeros = {"w": torch.zeros(100)}, rng(2), np.full(100, 0.5, np.float32)
        told = np.concatenate([filtering.altered(zeros, sent, source) for _ in range(200)])
        noise = told[told != 0] - 0.5
        assert np.abs(noise).mean() == pytest.approx(2 * 100 * 1.0 / 2000, rel=0.05)

    def test_the_threshold_is_noisy_too(self) -> None:
        """How often nothing is told of a hundred equal changes: all are below the bar together, or one is not. A bar
        that moves, for all of them alike, is above them more often than one that stands still.
        """
        filtering, draws = SparseVectorTechnique(epsilon=4.0, fraction=0.01, gamma=1.0, threshold=5.0), 8_000
        source, sent, vector = rng(3), {"w": torch.zeros(100)}, np.zeros(100, np.float32)
        silent = np.mean([not filtering.altered(vector, sent, source).any() for _ in range(draws)])
        first = 2.0 / (1 + 2 ** (2 / 3))  # ε₁, where ε₁ + ε₂ = ε/2 = 2 and ε₂/ε₁ = (2c)^⅔, c = 1
        bar, noise = stats.laplace(5.0, 1.0 / first), stats.laplace(0.0, 2 / (2.0 - first))
        expected = quad(lambda at: bar.pdf(at) * noise.cdf(at) ** 100, -60, 60, points=[0, 5], limit=200)[0]
        without = noise.cdf(5.0) ** 100
        error = 4 * 0.5 / draws**0.5
        assert abs(expected - without) > 2 * error, "so that it shows"
        assert silent == pytest.approx(expected, abs=error)

    def test_counters_are_not_told(self) -> None:
        sent = {"w": torch.zeros(3), "batches": torch.tensor(5)}
        assert (
            SparseVectorTechnique(epsilon=1.0).buffers({**sent, "batches": torch.tensor(9)}, sent)["batches"].item()
            == 5
        )


# What cannot be judged ------------------------------------------------------------------------------------------------

EVERY_FILTER = [
    Clip(norm=1.0),
    ExcludeVariables(variables=("*.bias",)),
    PercentilePrivacy(),
    SparseVectorTechnique(epsilon=1.0),
    LocalDp(noise_multiplier=1.0, clip=1.0),
]


def filtered(filtering: TwoSidedFilter, sent: dict, reply: dict) -> Reply | Failure:
    task = Task(name="train", client=0, round=1, version=0, payload=sent)

    def trained(tasks: object, site: object) -> list[Reply]:
        return [Reply(task=task, payload=reply, metrics={"loss": 0.1, "steps": 3.0})]

    (outcome,) = filtering.at_site(secure_stream)([task], None, trained)
    return outcome


@pytest.mark.parametrize("filtering", EVERY_FILTER, ids=lambda each: each.name)
def test_what_did_not_come_with_the_task_does_not_leave(filtering: TwoSidedFilter) -> None:
    trained = {name: tensor + 1 for name, tensor in SENT.items()}
    assert isinstance(filtered(filtering, {"model": SENT}, {"model": trained}), Reply)
    few = {
        "model": trained,
        "effective_steps": {"effective_steps": torch.tensor([3.0])},
        "profile": {"mean": torch.zeros(64)},
    }
    assert isinstance(filtered(filtering, {"model": SENT}, few), Reply)
    for sent, reply in (
        ({}, {"model": trained}),
        ({"model": SENT}, {"model": trained, "control": trained}),
        ({"model": {**SENT, "fc.bias": torch.zeros(20, dtype=torch.int64)}}, {"model": trained}),
        ({"model": {**SENT, "fc.bias": torch.zeros(1)}}, {"model": trained}),
        ({"model": {**SENT, "other": torch.zeros(1)}}, {"model": trained}),
    ):
        outcome = filtered(filtering, sent, reply)
        assert isinstance(outcome, Failure)
        assert "the task" in outcome.reason


@pytest.mark.parametrize("filtering", EVERY_FILTER, ids=lambda each: each.name)
def test_no_loss_leaves_beside_noise_that_hides_a_client(filtering: TwoSidedFilter) -> None:
    outcome = filtered(filtering, {"model": SENT}, {"model": SENT})
    assert isinstance(outcome, Reply)
    hides = isinstance(filtering, LocalDp | SparseVectorTechnique)
    assert outcome.metrics == ({"steps": 3.0} if hides else {"loss": 0.1, "steps": 3.0})


@pytest.mark.parametrize("filtering", [EVERY_FILTER[-2], EVERY_FILTER[-1]], ids=lambda each: each.name)
def test_counters_that_no_noise_covers_come_back_as_they_were_sent(filtering: TwoSidedFilter) -> None:
    sent = {**SENT, "batches": torch.tensor(5)}
    outcome = filtered(filtering, {"model": sent}, {"model": {**sent, "batches": torch.tensor(9)}})
    assert isinstance(outcome, Reply)
    assert outcome.payload["model"]["batches"].item() == 5


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ('[{name = "clpi", norm = 1.0}]', r"filters\[0\].name = 'clpi' is unknown; did you mean 'clip'"),
        ('[{name = "clip"}]', r"filters\[0\].norm is missing"),
        ('[{name = "clip", norm = 0.0}]', r"filters\[0\].norm = 0.0: must be above 0"),
        ('[{name = "clip", norm = 1.0, gamma = 1.0}]', r"unknown key filters\[0\].gamma; it belongs to"),
        ('[{name = "sparse-vector", epsilon = 0.0}]', r"filters\[0\].epsilon = 0.0"),
        ('[{name = "exclude", variables = []}]', r"filters\[0\].variables"),
        ('"clip"', "filters = 'clip': must be a list"),
        ('[{name = "compress", quantise = "int3"}]', r"filters\[0\].quantise.name = 'int3' is unknown; valid"),
        ('[{name = "compress"}, {name = "clip", norm = 1.0}]', "filters: compress must come last; 'clip' cannot"),
        ('[{name = "compress"}, {name = "compress"}]', "filters: compress must come last; 'compress' cannot"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(option: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        experiment(f"filters={option}")
    assert "\n" not in str(refused.value)
