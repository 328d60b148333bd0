"""SRPFL's linear case against calculations that are written differently."""

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import null_space, subspace_angles

from winnow.core import ConfigError
from winnow.papers.srpfl.linear_case import (
    LinearCase,
    LinearGroundTruth,
    estimate_representation,
    fedrep_round,
    principal_angle_distance,
    run_linear_case,
)
from winnow.papers.srpfl.linear_speedup import doubling_stages, expected_round_time, floor, measure, speedup_bound

CASE = LinearCase(clients=64)


def problem(seed: int = 0, clients: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray, LinearGroundTruth]:
    truth = LinearGroundTruth.draw(CASE, seed)
    rng = np.random.default_rng(seed)
    x, y = truth.batch(CASE, np.arange(clients), rng)
    basis, _ = np.linalg.qr(rng.standard_normal((CASE.dimension, CASE.rank)))
    return x, y, basis, truth


def test_a_round_is_what_a_loop_over_clients_and_samples_gives():
    x, y, basis, _ = problem()
    steps = []
    for features, answers in zip(x, y, strict=True):
        head = np.linalg.lstsq(features @ basis, answers, rcond=None)[0]
        gradient = np.zeros_like(basis)
        for sample, answer in zip(features, answers, strict=True):
            gradient += (head @ basis.T @ sample - answer) * np.outer(sample, head) / len(answers)
        steps.append(basis - 0.1 * gradient)
    average = sum(steps) / len(steps)
    after = fedrep_round(basis, x, y, 0.1)
    np.testing.assert_allclose(after.T @ after, np.eye(CASE.rank), atol=1e-12)
    projection = average @ np.linalg.inv(average.T @ average) @ average.T  # the span is what counts
    np.testing.assert_allclose(after @ after.T, projection, atol=1e-12)


def test_the_gradient_is_that_of_the_mean_loss():
    """With the heads fixed at their best, a small step lowers the loss of equation 6 as its derivative says."""
    x, y, basis, _ = problem(1)
    heads = [np.linalg.lstsq(features @ basis, answers, rcond=None)[0] for features, answers in zip(x, y, strict=True)]

    def loss(at: np.ndarray) -> float:
        pairs = zip(x, y, heads, strict=True)
        return float(np.mean([0.5 * np.mean((features @ at @ w - answers) ** 2) for features, answers, w in pairs]))

    small = 1e-6
    slope = np.zeros_like(basis)
    for place in np.ndindex(*basis.shape):
        moved = np.zeros_like(basis)
        moved[place] = small
        slope[place] = (loss(basis + moved) - loss(basis - moved)) / (2 * small)
    stepped = basis - 0.3 * slope
    assert principal_angle_distance(fedrep_round(basis, x, y, 0.3), np.linalg.qr(stepped)[0]) < 1e-7


def test_the_start_spans_the_largest_eigenvectors_of_the_moment():
    x, y, _, _ = problem(2, clients=40)
    moment = sum(
        a**2 * np.outer(v, v)
        for features, answers in zip(x, y, strict=True)
        for v, a in zip(features, answers, strict=True)
    )
    _, vectors = np.linalg.eigh(moment)
    assert principal_angle_distance(estimate_representation(x, y, CASE.rank), vectors[:, -CASE.rank :]) < 1e-10


def test_the_start_finds_the_truth_where_samples_abound():
    case = LinearCase(clients=400, samples=200)
    truth = LinearGroundTruth.draw(case, 0)
    x, y = truth.batch(case, np.arange(400), np.random.default_rng(0))
    assert principal_angle_distance(estimate_representation(x, y, case.rank), truth.representation) < 0.1


def test_the_distance_is_the_sine_of_the_largest_principal_angle():
    rng = np.random.default_rng(0)
    a, b = (np.linalg.qr(rng.standard_normal((9, 3)))[0] for _ in range(2))
    assert principal_angle_distance(a, b) == pytest.approx(np.sin(subspace_angles(a, b).max()))
    assert principal_angle_distance(a, b) == pytest.approx(np.linalg.norm(null_space(b.T).T @ a, ord=2))
    rotated = a @ np.linalg.qr(rng.standard_normal((3, 3)))[0]
    assert principal_angle_distance(rotated, a) < 1e-12


def test_heads_and_representation_keep_assumption_4_4():
    truth = LinearGroundTruth.draw(CASE, 3)
    np.testing.assert_allclose(np.linalg.norm(truth.heads, axis=1), np.sqrt(CASE.rank))
    np.testing.assert_allclose(truth.representation.T @ truth.representation, np.eye(CASE.rank), atol=1e-12)


def test_a_round_waits_for_its_slowest_participant_only():
    rounds = 3000
    case = LinearCase(clients=16, dimension=3, rank=1, samples=2, first_stage_clients=1)
    for count in (1, 4, 16):
        waits = np.diff(run_linear_case(case, 0, [count] * rounds).seconds)
        expected = sum(1 / i for i in range(16 - count + 1, 17))
        assert expected_round_time(16, count) == pytest.approx(expected)
        assert waits.mean() == pytest.approx(expected, rel=0.06)
    fastest = np.diff(run_linear_case(case, 1, [1] * rounds).seconds)
    assert stats.kstest(fastest, stats.expon(scale=1 / 16).cdf).pvalue > 1e-3


def test_the_same_seed_gives_the_same_path_and_another_another():
    first, again, other = (run_linear_case(CASE, seed, [16, 32, 64]) for seed in (0, 0, 1))
    assert np.array_equal(first.distances, again.distances)
    assert np.array_equal(first.seconds, again.seconds)
    assert not np.array_equal(first.distances, other.distances)
    assert run_linear_case(CASE, 0, [64] * 500, until=0.2).distances[-1] <= 0.2


def test_more_participants_settle_nearer_as_predicted():
    settled = {}
    for count in (16, 64):
        path = run_linear_case(CASE, 0, [count] * 150)
        settled[count] = path.distances[-60:].mean()
        assert settled[count] == pytest.approx(floor(CASE, count), rel=0.3)
    assert settled[16] / settled[64] == pytest.approx(2, rel=0.2)


def test_stages_double_and_end_where_twice_as_many_gain_more_a_second():
    case = LinearCase(clients=256)
    found = doubling_stages(case)
    assert [count for count, _ in found] == [16, 32, 64, 128]
    distance_now = 1.0
    for count, rounds in found:
        settled, doubled = floor(case, count), floor(case, 2 * count)
        gains = []
        for _ in range(rounds + 1):
            alone = (distance_now - settled) / expected_round_time(256, count)
            gains.append((alone, (distance_now - doubled) / expected_round_time(256, 2 * count)))
            distance_now = settled + (1 - case.rate) * (distance_now - settled)
        distance_now = settled + (distance_now - settled) / (1 - case.rate)  # as it was when the stage ended
        assert gains[0][0] > gains[0][1]
        assert gains[-1][0] <= gains[-1][1]


def test_srpfl_is_sooner_and_the_more_so_the_more_clients_there_are():
    ratios = {
        clients: np.mean(
            [measure(LinearCase(clients=clients, initial_clients=16), seed, 90).ratio for seed in range(2)]
        )
        for clients in (32, 256)
    }
    assert ratios[256] < ratios[32] < 1
    assert ratios[256] < speedup_bound(256)
    assert speedup_bound(4096) < speedup_bound(64)


def test_impossible_sizes_are_refused():
    with pytest.raises(ConfigError, match="rank = 3"):
        LinearCase(clients=64, dimension=3, rank=3)
    with pytest.raises(ConfigError, match="first_stage_clients = 16 must be from the rank to 4, all clients"):
        LinearCase(clients=4)
