"""Contributions: Shapley values from updates, against brute force and against what Shapley values must be."""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from winnow.core import Outcome, Reply, Task
from winnow.learn.client_quality import reference_utility
from winnow.learn.client_quality.assessment import assess
from winnow.learn.client_quality.coalition_game import CoalitionGame, Utilities
from winnow.learn.client_quality.contribution import ContributionEstimate, ContributionEstimator, evaluations_per_round
from winnow.learn.client_quality.departures import Departures
from winnow.learn.client_quality.reference_utility import ReferenceUtility
from winnow.learn.stack import ModelState, as_loss
from winnow.learn.stack.loop_execution import LoopExecution
from world import prepared

PLENTY = 10**6
START: ModelState = {"w": torch.zeros(2), "steps": torch.tensor(0)}

vectors = st.tuples(*[st.floats(-2, 2, width=16)] * 2)


def sent_back(updates: Mapping[int, Sequence[float]], start: ModelState = START) -> list[Reply]:
    """Each client's reply, whose model is the start plus this update."""
    return [
        Reply(
            task=Task(name="train", client=k, round=1, version=0, payload={"model": start}),
            payload={"model": {"w": start["w"] + torch.tensor(update), "steps": start["steps"] + 3}},
        )
        for k, update in updates.items()
    ]


def bumps(state: ModelState) -> float:
    """A utility with interactions: neither linear nor monotone."""
    a, b = state["w"].double().tolist()
    return math.exp(-((a - 0.7) ** 2) - (b + 0.4) ** 2) + 0.2 * math.sin(3 * a * b)


def brute_force(
    updates: Mapping[int, Sequence[float]], weights: Mapping[int, float], utility: Callable[[ModelState], float]
) -> dict[int, float]:
    """The mean over all orders of what a client adds to those before it, in float64 and without any shortcut."""

    def value(members: tuple[int, ...]) -> float:
        if not members:
            return utility(START)
        total = sum(weights[k] for k in members)
        w = sum(weights[k] / total * np.array(updates[k]) for k in members)
        return utility({"w": torch.tensor(w)})

    gains: dict[int, list[float]] = {k: [] for k in updates}
    for order in permutations(updates):
        for place, k in enumerate(order):
            gains[k].append(value(order[: place + 1]) - value(order[:place]))
    return {k: float(np.mean(own)) for k, own in gains.items()}


def stacked(utility: Callable[[ModelState], float]) -> Utilities:
    """The utility of each of several models."""

    def utilities(states: ModelState) -> NDArray[np.float64]:
        return np.array([utility({name: t[i] for name, t in states.items()}) for i in range(len(states["w"]))])

    return utilities


def observed(
    updates: Mapping[int, Sequence[float]],
    weights: Mapping[int, float],
    utility: Callable[[ModelState], float] = bumps,
) -> dict[int, ContributionEstimate]:
    estimator = ContributionEstimator()
    estimator.observe(START, sent_back(updates), weights, stacked(utility), np.random.default_rng(0), PLENTY)
    return estimator.estimates()


# Exact values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [1, 2, 3, 5, 6])
def test_small_cohorts_get_the_shapley_values_of_brute_force(clients: int) -> None:
    rng = np.random.default_rng(clients)
    updates = {3 * k: rng.normal(size=2).tolist() for k in range(clients)}
    weights = {k: float(rng.integers(1, 9)) for k in updates}
    expected = brute_force(updates, weights, bumps)
    found = observed(updates, weights)
    assert found.keys() == updates.keys()
    for k, each in found.items():
        assert each.mean == pytest.approx(expected[k], abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.lists(vectors, min_size=2, max_size=5), st.data())
def test_values_share_out_the_gain_and_treat_equals_alike(
    given_updates: list[tuple[float, ...]], data: st.DataObject
) -> None:
    """Efficiency: Σ φ_k = U(all) − U(nobody). Symmetry: a client and its copy get the same. Both by definition."""
    copied = data.draw(st.integers(0, len(given_updates) - 1))
    updates = dict(enumerate([*given_updates, given_updates[copied]]))
    weights = {k: 1.0 + k % 3 for k in updates}
    weights[len(updates) - 1] = weights[copied]
    game = CoalitionGame(START, sent_back(updates), weights, stacked(bumps))
    for values in (game.exact_shapley(), *game.gains_along([list(updates), list(updates)[::-1]], 0.0)):
        assert values.sum() == pytest.approx(game.value(updates) - game.value(()), abs=1e-9)
    exact = game.exact_shapley()
    assert exact[copied] == pytest.approx(exact[-1], abs=1e-6)  # models are in single precision


def test_a_client_that_changes_nothing_adds_nothing_where_means_are_not_diluted() -> None:
    """The null player: an empty update only shortens the mean, and is worth 0 where its direction alone counts."""

    def direction(state: ModelState) -> float:
        a, b = state["w"].double().tolist()
        return math.atan2(b, a) if (a, b) != (0, 0) else 0.0

    found = observed({0: (1, 1), 1: (0, 0), 2: (1, 3)}, {0: 1.0, 1: 2.0, 2: 3.0}, direction)
    assert found[1].mean == pytest.approx(0, abs=1e-6)
    assert found[0].mean > 0.1


def test_leave_one_out_is_what_the_others_miss() -> None:
    updates, weights = {0: (1.0, 0.0), 1: (0.5, -0.5), 2: (-1.0, 1.0)}, {0: 1.0, 1: 2.0, 2: 1.0}
    together = (1 * np.array(updates[0]) + 2 * np.array(updates[1]) + np.array(updates[2])) / 4
    without = (1 * np.array(updates[0]) + 2 * np.array(updates[1])) / 3
    expected = bumps({"w": torch.tensor(together)}) - bumps({"w": torch.tensor(without)})
    assert observed(updates, weights)[2].leave_one_out == pytest.approx(expected, abs=1e-6)


# Sampling -------------------------------------------------------------------------------------------------------------


class Counted:
    """A utility that notes of whose models it is asked: client k's update is a one at place k."""

    def __init__(self, worth: Sequence[float]) -> None:
        self.worth = np.array(worth)
        self.coalitions: list[tuple[int, ...]] = []

    def __call__(self, state: ModelState) -> float:
        present = state["w"].numpy() > 0
        self.coalitions.append(tuple(np.flatnonzero(present).tolist()))
        return float(self.worth[present].sum() + 0.01 * present.sum() ** 0.5)


def one_hot(clients: int) -> tuple[list[Reply], dict[int, float], ModelState]:
    start: ModelState = {"w": torch.zeros(clients), "steps": torch.tensor(0)}
    return (
        sent_back({k: np.eye(clients, dtype=np.float32)[k].tolist() for k in range(clients)}, start),
        dict.fromkeys(range(clients), 1.0),
        start,
    )


def test_sampled_values_agree_with_the_exact_ones() -> None:
    """A game of 12: every client has a worth of its own, and all share a bonus by how many they are."""
    worth = np.linspace(-0.1, 0.2, 12)
    replies, weights, start = one_hot(12)
    found: list[list[float]] = []
    for seed in range(8):
        estimator = ContributionEstimator()
        estimator.observe(start, replies, weights, stacked(Counted(worth.tolist())), np.random.default_rng(seed), 400)
        found.append([each.mean for each in estimator.estimates().values()])
    bonus = 0.01 * 12**0.5 / 12  # by symmetry
    np.testing.assert_allclose(np.mean(found, 0), worth + bonus, atol=0.004)
    np.testing.assert_allclose(np.sum(found, 1), (worth + bonus).sum(), atol=0.002)


def test_each_client_comes_first_equally_often_over_the_rounds() -> None:
    replies, weights, start = one_hot(9)
    utility, estimator = Counted(np.linspace(0.05, 0.2, 9).tolist()), ContributionEstimator()
    firsts: list[int] = []
    for number in range(9):
        utility.coalitions.clear()
        estimator.observe(start, replies, weights, stacked(utility), np.random.default_rng(number), 25)
        firsts += [own[0] for own in utility.coalitions if len(own) == 1]
    counts = np.bincount(firsts, minlength=9)
    assert counts.sum() == 18
    assert counts.tolist() == [2] * 9


def test_a_permutation_ends_when_nothing_is_left_to_gain() -> None:
    """One client brings all there is: coalitions that have it are not extended."""
    replies, weights, start = one_hot(10)

    class OneBringsAll(Counted):
        def __call__(self, state: ModelState) -> float:
            super().__call__(state)
            return float(state["w"][4] > 0)

    utility, estimator = OneBringsAll([0] * 10), ContributionEstimator()
    estimator.observe(start, replies, weights, stacked(utility), np.random.default_rng(0), 500)
    permutations_taken = estimator.state()["sums"][:, 5].sum()
    complete = [own for own in utility.coalitions if 4 in own and len(own) < 9]
    assert 0 < len(complete) <= permutations_taken
    assert {k: round(each.mean, 9) for k, each in estimator.estimates().items()} == {
        k: float(k == 4) for k in range(10)
    }


def test_sampling_ends_when_the_values_stand() -> None:
    """An additive game has the same gains in any order: three pairs of permutations are enough."""
    replies, weights, start = one_hot(8)
    utility, estimator = Counted(np.linspace(0.1, 0.2, 8).tolist()), ContributionEstimator()
    estimator.observe(start, replies, weights, stacked(utility), np.random.default_rng(0), PLENTY)
    assert len(utility.coalitions) <= 2 + 8 + 3 * 2 * 6


def test_a_round_that_changes_nothing_is_passed_over_and_costs_two_evaluations() -> None:
    replies, weights, start = one_hot(8)
    utility, estimator = Counted([0.0] * 8), ContributionEstimator()
    flat = lambda state: 0.0 * utility(state)  # noqa: E731
    estimator.observe(start, replies, weights, stacked(flat), np.random.default_rng(0), 100)
    assert estimator.estimates() == {}
    assert len(utility.coalitions) == 2
    assert int(estimator.state()["saved"]) == 98


def test_a_round_spends_no_more_than_was_given_and_saves_the_rest() -> None:
    """20 clients need 58 evaluations at least: with 20 a round, every third round is looked at."""
    replies, weights, start = one_hot(20)
    utility, estimator = Counted(np.linspace(-0.2, 0.3, 20).tolist()), ContributionEstimator()
    given_so_far, looked = 0, []
    for number in range(12):
        before = len(utility.coalitions)
        estimator.observe(start, replies, weights, stacked(utility), np.random.default_rng(number), 20)
        given_so_far += 20
        looked.append(len(utility.coalitions) > before)
        assert len(utility.coalitions) <= given_so_far
    assert looked == [False, False, True] * 4


# Uncertainty ----------------------------------------------------------------------------------------------------------


def test_mean_and_standard_error_over_rounds() -> None:
    estimator, seen, left_out = ContributionEstimator(), [], []
    weights = {0: 1.0, 1: 1.0}
    for number in range(5):
        updates = {0: (0.2 * number, -0.1), 1: (0.3, 0.1 * number)}
        estimator.observe(START, sent_back(updates), weights, stacked(bumps), np.random.default_rng(0), 4)
        seen.append(brute_force(updates, weights, bumps)[1])
        together = np.mean([updates[0], updates[1]], 0)
        left_out.append(bumps({"w": torch.tensor(together)}) - bumps({"w": torch.tensor(updates[0])}))
    found = estimator.estimates()[1]
    assert found.rounds == 5
    assert found.mean == pytest.approx(np.mean(seen), abs=1e-6)
    assert found.standard_error == pytest.approx(stats.sem(seen), rel=1e-4)
    assert found.leave_one_out_error == pytest.approx(stats.sem(left_out), rel=1e-4)


@pytest.mark.parametrize(
    ("values", "harmful"),
    [((-0.02, -0.03, -0.025, -0.02), True), ((-0.02, 0.03, -0.025, -0.02), False), ((-0.5,), False)],
)
def test_harm_needs_a_negative_mean_beyond_its_uncertainty(values: tuple[float, ...], harmful: bool) -> None:
    """The one-sided t-test at 99 %, as scipy has it."""
    estimator = ContributionEstimator()
    for value in values:
        utility = lambda state, value=value: value * float(state["w"][0])  # noqa: E731
        estimator.observe(START, sent_back({0: (1.0, 0.0)}), {0: 1.0}, stacked(utility), np.random.default_rng(0), 2)
    [found] = estimator.estimates().values()
    assert found.harmful == harmful
    if len(values) > 1:
        assert found.harmful == (stats.ttest_1samp(values, 0, alternative="less").pvalue < 0.01)
    assert "better without it" in found.text()


def estimate(leave_one_out: float) -> ContributionEstimate:
    return ContributionEstimate(
        mean=leave_one_out, standard_error=0.01, leave_one_out=leave_one_out, leave_one_out_error=0.01, rounds=9
    )


def test_verdicts_by_updates_and_contribution_alone() -> None:
    """Harm makes an alarm harmful; without an alarm the client is different. Nothing is said of the unknown."""
    history: dict[int, list[Departures]] = {k: [] for k in range(6)}
    updates = {0: 9.0, 1: 9.0, 2: 0.3, 3: 0.3}
    contributions = {0: estimate(-0.2), 1: estimate(0.1), 2: estimate(-0.2), 4: estimate(0.001)}
    found = assess(history, asked=False, updates=updates, contribution=contributions)
    assert [each.verdict for each in found] == ["harmful", "suspect", "different", "fine", "fine", "cannot tell"]
    assert found[2].kinds == ("contribution",)
    assert found[0].score == found[1].score > 1 > found[2].score
    assert math.isnan(found[5].score)


# Robustness and resume ------------------------------------------------------------------------------------------------


def test_an_update_that_is_not_finite_plays_no_part() -> None:
    found = observed({0: (1, 0), 1: (math.nan, 0), 2: (0, 1)}, dict.fromkeys(range(3), 1.0))
    assert found == observed({0: (1, 0), 2: (0, 1)}, dict.fromkeys(range(3), 1.0))
    assert observed({0: (math.inf, 0)}, {0: 1.0}) == observed({}, {}) == {}


def test_of_a_client_that_started_from_an_older_version_only_the_change_counts() -> None:
    older: ModelState = {"w": torch.tensor([5.0, 5.0]), "steps": torch.tensor(1)}
    stale = [*sent_back({0: (1.0, 0.0)}), *sent_back({1: (0.0, -1.0)}, older)]
    estimator = ContributionEstimator()
    estimator.observe(START, stale, {0: 1.0, 1: 2.0}, stacked(bumps), np.random.default_rng(0), 4)
    fresh = observed({0: (1, 0), 1: (0, -1)}, {0: 1.0, 1: 2.0})
    for k, each in estimator.estimates().items():
        assert each.mean == pytest.approx(fresh[k].mean, abs=1e-6)


def test_a_restored_estimator_goes_on_with_the_same_bits() -> None:
    replies, weights, start = one_hot(9)

    def observe(estimator: ContributionEstimator, round: int) -> None:
        utility = Counted(np.linspace(-0.1, 0.2, 9).tolist())
        estimator.observe(start, replies, weights, stacked(utility), np.random.default_rng(round), 40)

    whole, first = ContributionEstimator(), ContributionEstimator()
    for number in range(4):
        observe(whole, number)
    observe(first, 0)
    observe(first, 1)
    second = ContributionEstimator()
    second.restore({name: np.array(array) for name, array in first.state().items()})
    observe(second, 2)
    observe(second, 3)
    assert second.estimates() == whole.estimates()
    for name, array in whole.state().items():
        np.testing.assert_array_equal(second.state()[name], array)


# Utility and cost -----------------------------------------------------------------------------------------------------


def test_the_utility_of_a_classifier_is_the_mean_probability_of_the_right_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    module, x, y = torch.nn.Linear(3, 4), torch.randn(50, 3), torch.randint(4, (50,))
    others = [torch.nn.Linear(3, 4) for _ in range(3)]
    states = {name: torch.stack([own.state_dict()[name] for own in others]) for name in module.state_dict()}
    execution = LoopExecution(module, as_loss("cross-entropy"))
    monkeypatch.setattr(reference_utility, "BLOCK_VALUES", 2 * x.numel())  # two models at a time
    utilities = ReferenceUtility(execution, x, y, np.random.default_rng(0))
    expected = [torch.softmax(own(x), 1)[torch.arange(50), y].mean().item() for own in others]
    np.testing.assert_allclose(utilities(states), expected, atol=1e-6)
    nowhere = {name: torch.full_like(tensor, 1e30) for name, tensor in states.items()}
    assert ((utilities(nowhere) >= 0) & (utilities(nowhere) <= 1)).all()


def test_the_utility_of_a_regression_does_not_depend_on_the_unit() -> None:
    torch.manual_seed(0)
    module, x = torch.nn.Linear(3, 1), torch.randn(2_000, 3)
    y = x.sum(1, keepdim=True) + 2
    execution = LoopExecution(module, as_loss("mse"))
    metres = ReferenceUtility(execution, x, y, np.random.default_rng(0))
    millimetres = ReferenceUtility(execution, x, 1000 * y, np.random.default_rng(0))
    assert metres.rows == 1_000
    fit_and_poor = {"weight": torch.tensor([[[1.0, 1, 1]], [[0, 0, 0]]]), "bias": torch.tensor([[2.0], [2.0]])}
    scaled = {name: 1000 * tensor for name, tensor in fit_and_poor.items()}
    np.testing.assert_allclose(metres(fit_and_poor), millimetres(scaled), atol=1e-4)
    fit, poor = metres(fit_and_poor)
    assert fit > 0.999
    assert 0.5 < poor < 0.7


def test_all_estimates_of_a_run_cost_no_more_than_five_rounds() -> None:
    """A round of 20 clients with 300 rows and five epochs trains on 30,000 rows."""
    each = evaluations_per_round(trained_rows=30_000, reference_rows=1_000, rounds=30)
    assert 0 < 30 * each * 1_000 <= 5 * 2 * 30_000
    assert evaluations_per_round(trained_rows=30_000, reference_rows=1_000, rounds=15) == pytest.approx(2 * each)


# In a run -------------------------------------------------------------------------------------------------------------


def test_in_a_run_leave_one_out_compares_the_aggregate_with_that_of_the_others() -> None:
    sets = ("rounds=1", "select.count=5", "data.corruptions=[]", "quality.evidence=['contribution']")
    sent: list[Reply] = []
    with prepared(*sets, algorithm="fedavg-rp") as made:
        honest = made.simulation.handlers["train"]

        def watched(tasks: Sequence[Task], site: Any) -> Sequence[Outcome]:
            outcomes = honest(tasks, site)
            sent.extend(outcome for outcome in outcomes if isinstance(outcome, Reply))
            return outcomes

        made.simulation.handlers["train"] = watched
        list(made.training.run(made.federation))
        arrays, sizes = made.training.snapshot().arrays, made.federation.population.sizes
        module = deepcopy(made.module).eval()
        evaluator = made.training.evaluator._reference
        x, y = evaluator.x, evaluator.y

    def utility(replies: list[Reply]) -> float:
        """The mean probability of the right class under the mean of these models, by size."""
        weights = np.array([sizes[reply.task.client] for reply in replies], np.float64)
        models = [reply.payload["model"] for reply in replies]
        weighted = zip(weights / weights.sum(), models, strict=True)
        parts = [{name: w * tensor for name, tensor in model.items()} for w, model in weighted]
        module.load_state_dict({name: sum(part[name] for part in parts) for name in models[0]})
        with torch.no_grad():
            return float(torch.softmax(module(x), 1)[torch.arange(len(y)), y].mean())

    sent.sort(key=lambda reply: reply.task.client)
    expected = [utility(sent) - utility([own for own in sent if own is not left]) for left in sent]
    assert len(sent) == 5
    assert arrays["quality/contribution/clients"].tolist() == [reply.task.client for reply in sent]
    np.testing.assert_allclose(arrays["quality/contribution/sums"][:, 2], expected, atol=1e-5)
    assert np.abs(expected).max() > 1e-4
