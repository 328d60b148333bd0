"""Noise at the server: bounds hold for any update, and nobody can be told apart better than promised."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from selecting import selection_context
from winnow.core import UNTIL_ALL, Population, Reply, Task, VirtualClock, stream
from winnow.learn.aggregation import AggregationRule, FullAggregation, PartialAggregation
from winnow.learn.collect import RoundResult
from winnow.privacy.dp.central import CentralDp, clipped_sum
from winnow.privacy.dp.clipping import AdaptiveClipping
from winnow.privacy.dp.poisson_sampling import PoissonSampling
from winnow.privacy.dp.privacy_loss import GaussianRelease, epsilon
from world import prepared, round_context

START = {"w": torch.zeros(2, 3), "b": torch.ones(2), "count": torch.tensor(7)}
SIZES = np.array([10, 20, 30, 40])


def reply(client: int, change: np.ndarray) -> Reply:
    w, b = torch.from_numpy(change[:6].reshape(2, 3)).float(), torch.from_numpy(change[6:]).float()
    model = {"w": START["w"] + w, "b": START["b"] + b, "count": torch.tensor(99)}
    return Reply(task=Task(name="train", client=client, round=1, version=0), payload={"model": model})


class Told:
    """A federation whose clients have answered already."""

    def __init__(self, replies: Sequence[Reply]) -> None:
        self.replies, self.population, self.clock = replies, Population(sizes=SIZES), VirtualClock()

    def dispatch(self, tasks: Any, until: Any = UNTIL_ALL) -> "Told":
        return self

    def settle(self, tasks: Any) -> None: ...

    randomness = staticmethod(stream)

    def __iter__(self) -> Any:
        return iter(self.replies)

    def __enter__(self) -> "Told":
        return self

    def __exit__(self, *_: object) -> None: ...


def gathered(
    changes: Mapping[int, np.ndarray],
    collect: CentralDp,
    aggregate: AggregationRule | None = None,
    *,
    cohort: int = 2,
    seed: int = 0,
    left: Mapping[str, Any] | None = None,
) -> RoundResult:
    rule = aggregate or PartialAggregation()
    return collect.gather(
        Told([reply(client, change) for client, change in changes.items()]),
        round_context(
            {"model": START},
            seed=seed,
            counts=dict.fromkeys(changes, 1),
            start_fold=lambda: rule.start(START, Population(sizes=SIZES), cohort, np.random.default_rng()),
            selected=cohort,
            state=left or {},
        ),
    )


def changed(found: RoundResult) -> np.ndarray:
    return np.concatenate([(found.model[name] - START[name]).numpy().reshape(-1) for name in ("w", "b")])


QUIET = CentralDp(noise_multiplier=1e-9, clip=0.7)
updates = st.dictionaries(
    st.integers(0, 3), hnp.arrays(np.float64, 8, elements=st.floats(-1e6, 1e6)), min_size=1, max_size=4
)


@settings(max_examples=60, deadline=None)
@given(updates, st.floats(0.01, 10), st.lists(st.floats(0.01, 100), min_size=4, max_size=4))
def test_no_client_moves_the_sum_by_more_than_the_bound(
    changes: dict[int, np.ndarray], bound: float, weights: list[float]
) -> None:
    replies = [reply(client, change) for client, change in changes.items()]
    shares = [weights[client] for client in changes]
    whole, _ = clipped_sum(replies, shares, START, bound)
    for left_out in range(len(replies)):
        others = [each for i, each in enumerate(replies) if i != left_out]
        without, _ = clipped_sum(others, [w for i, w in enumerate(shares) if i != left_out], START, bound)
        assert float((whole - without).norm()) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("weights", ["size", "uniform", "scheme-2"])
def test_weight_bound_sum_and_division_by_a_public_constant(weights: str) -> None:
    rng = np.random.default_rng(0)
    changes = {0: rng.normal(0, 0.01, 8), 2: rng.normal(0, 1, 8), 3: rng.normal(0, 0.02, 8)}
    expected = np.zeros(8)
    for client, change in changes.items():
        weighted = (1.0 if weights == "uniform" else SIZES[client] / SIZES.mean()) * change
        expected += weighted * min(1, 0.7 / np.linalg.norm(weighted))
    found = gathered(
        changes, QUIET, PartialAggregation(weights=weights), cohort=2
    )  # two are selected by the settings, three came
    np.testing.assert_allclose(changed(found), expected / 2, atol=1e-6)
    assert int(found.model["count"]) == 7, "counters are not covered by noise, so they stay as they were"


def test_full_aggregation_moves_by_the_shares_of_all_data() -> None:
    changes = {1: np.full(8, 0.01), 3: np.full(8, -0.03)}
    expected = (20 * changes[1] + 40 * changes[3]) / 100
    np.testing.assert_allclose(changed(gathered(changes, QUIET, FullAggregation(), cohort=2)), expected, atol=1e-6)


def test_noise_is_that_of_the_multiplier_and_the_bound() -> None:
    collect = CentralDp(noise_multiplier=3.0, clip=0.5)
    drawn = np.concatenate([changed(gathered({}, collect, cohort=4, seed=seed)) for seed in range(300)])
    assert drawn.std() == pytest.approx(3.0 * 0.5 / 4, rel=0.05)
    assert abs(drawn.mean()) < 4 * drawn.std() / np.sqrt(len(drawn))


def test_an_empty_round_is_noisy_too() -> None:
    found = gathered({}, CentralDp(noise_multiplier=1.0), cohort=2)
    assert found.valid_without_replies
    assert np.abs(changed(found)).min() > 0


def test_losses_are_told_to_nobody() -> None:
    with prepared('collect.name="central-dp"', "collect.noise_multiplier=1.0", algorithm="fedavg") as ready:
        tasks = ready.training.tasks([0, 1], ready.federation.population.sizes, round=1)
        with ready.federation.dispatch(tasks) as exchange:
            assert [sorted(each.metrics) for each in exchange] == [["steps", "total_step_size"]] * 2, (
                "nor to the server"
            )
        rounds = [e for e in ready.training.run(ready.federation) if e.kind == "round_finished"]
    assert all(np.isnan(event.loss) for event in rounds)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_counts_as_no_change_and_no_log_tells_of_it(odd: float) -> None:
    partly = np.array([odd, 0.01, odd, 0.02, 0.0, 0.0, 0.0, 0.0])
    found = gathered({0: partly, 1: np.full(8, 0.01)}, QUIET)
    assert found.rejected == []
    assert len(found.aggregated) == 2
    clean = gathered({0: np.where(np.isfinite(partly), partly, 0.0), 1: np.full(8, 0.01)}, QUIET)
    np.testing.assert_allclose(changed(found), changed(clean), atol=1e-7)


# The adaptive bound ---------------------------------------------------------------------------------------------------


def test_both_releases_together_are_one_of_the_multiplier() -> None:
    follows = AdaptiveClipping.of(0.5, 0.2, 1.3, cohort=50)
    inside = 1 / follows.sum_noise(1.3) ** 2 + 1 / (2 * follows.count_noise) ** 2
    assert inside == pytest.approx(1 / 1.3**2)


def test_with_an_adaptive_bound_the_sum_has_more_noise_to_make_up_for_the_count() -> None:
    """z_Δ = (z⁻² − (2σ_b)⁻²)^(−½), where σ_b = max(K/20, 1.6·z)."""
    collect = CentralDp(noise_multiplier=3.0, clip=0.5, adaptive_clip=True)
    drawn = np.concatenate([changed(gathered({}, collect, cohort=4, seed=seed)) for seed in range(4000)])
    raised = (3.0**-2 - (2 * 1.6 * 3.0) ** -2) ** -0.5
    assert raised > 1.05 * 3.0
    assert drawn.std() == pytest.approx(raised * 0.5 / 4, rel=0.02)


def test_the_bound_finds_the_median_of_the_norms() -> None:
    rng = np.random.default_rng(0)
    norms = rng.lognormal(0, 0.5, 400)
    follows = AdaptiveClipping.of(0.5, 0.2, 1.0, cohort=400)
    bound = 0.05
    for _ in range(80):
        bound = follows.next(bound, [norm <= bound for norm in norms], 400, rng)
    assert bound == pytest.approx(np.median(norms), rel=0.1)


def test_the_bound_is_kept_from_round_to_round() -> None:
    collect = CentralDp(noise_multiplier=1e-9, clip=100.0, adaptive_clip=True)
    changes = dict.fromkeys(range(4), np.full(8, 0.01))
    first = gathered(changes, collect, cohort=4)
    assert float(first.next_round_state["clip"][0]) == pytest.approx(100 * np.exp(-0.2 * 0.5), rel=0.2)
    second = gathered(changes, collect, cohort=4, left=first.next_round_state)
    assert second.metrics["clip"] < first.metrics["clip"] < 100


# Sampling -------------------------------------------------------------------------------------------------------------


def test_poisson_sampling_draws_each_client_alone() -> None:
    selection = PoissonSampling(fraction=0.2).start(Population(sizes=np.ones(50, np.int64)))
    drawn = np.zeros((2000, 50))
    for number in range(2000):
        drawn[number, selection.propose(selection_context(number + 1)).clients] = 1
    assert drawn.mean() == pytest.approx(0.2, abs=0.01)
    assert drawn.sum(1).var() == pytest.approx(50 * 0.2 * 0.8, rel=0.1)
    correlations = np.corrcoef(drawn.T)[np.triu_indices(50, 1)]
    assert np.abs(correlations).max() < 0.11


def test_rounds_without_anybody_are_held() -> None:
    with prepared(
        'collect.name="central-dp"', "collect.noise_multiplier=1.0", 'select.name="poisson"', "select.count=1",
        algorithm="fedavg", rounds=12,
    ) as ready:  # fmt: skip
        events = list(ready.training.run(ready.federation))
    cohort = [len(event.clients) for event in events if event.kind == "selected"]
    assert 0 in cohort
    assert len([event for event in events if event.kind == "round_finished"]) == 12


# Membership -----------------------------------------------------------------------------------------------------------


def test_a_canary_cannot_be_told_from_its_absence_better_than_promised() -> None:
    """Two neighbouring runs: a client that moves one weight as far as it may, and one that stays away. An attacker who
    sees the model tells them apart by that weight. For every threshold TPR ≤ e^ε·FPR + δ must hold, and does by a
    margin of the sampling error; without noise it would fail at once.
    """
    collect, delta, runs = CentralDp(noise_multiplier=1.0, clip=1.0), 1e-5, 1500
    canary, others = np.eye(8)[0] * 50.0, {1: np.full(8, 0.1)}
    present = np.array([changed(gathered({0: canary, **others}, collect, seed=s))[0] for s in range(runs)])
    absent = np.array([changed(gathered(others, collect, seed=s))[0] for s in range(runs, 2 * runs)])
    factor = np.exp(epsilon([GaussianRelease(noise=1.0)], delta))
    advantage = 0.0
    for threshold in np.quantile(np.concatenate([present, absent]), np.linspace(0.02, 0.98, 49)):
        caught, mistaken = (present > threshold).mean(), (absent > threshold).mean()
        error = 4 * (0.5 / np.sqrt(runs)) * (1 + factor * np.sqrt(max(mistaken, 1 / runs)))
        assert caught <= factor * mistaken + delta + error
        assert 1 - mistaken <= factor * (1 - caught) + delta + error
        advantage = max(advantage, caught - mistaken)
    total_variation = 0.3829  # of N(0, 1) and N(1, 1): 2Φ(1/2) − 1, the most that any test achieves
    assert advantage == pytest.approx(total_variation, abs=0.06)
