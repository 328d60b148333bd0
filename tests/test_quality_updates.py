"""Evidence from updates: lengths and directions against the others', by hand; robust scores; resume."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from winnow.core import Reply, Task
from winnow.learn.client_quality import update_evidence
from winnow.learn.client_quality.update_evidence import UpdateEvidence, lengths_and_cosines
from winnow.learn.stack import ModelState

START: ModelState = {"a": torch.tensor([1.0, -2.0]), "b": torch.tensor([[3.0]]), "statistics": torch.tensor([100.0])}


def sent_back(updates: Mapping[int, Sequence[float]]) -> list[Reply]:
    """Replies with a model that has moved by [a, a, b]; batch statistics, which nobody trains, have moved far."""
    return [
        Reply(
            task=Task(name="train", client=k, round=1, version=0, payload={"model": START}),
            payload={
                "model": {
                    "a": START["a"] + torch.tensor(update[:2]),
                    "b": START["b"] + update[2],
                    "statistics": torch.tensor([1e4 * k]),
                }
            },
        )
        for k, update in updates.items()
    ]


def evidence(rounds: Sequence[Mapping[int, Sequence[float]]]) -> UpdateEvidence:
    found = UpdateEvidence(("a", "b"))
    for updates in rounds:
        found.observe(sent_back(updates), dict.fromkeys(updates, 1.0))
    return found


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(*[st.integers(-4, 4)] * 3, st.integers(1, 5)), min_size=2, max_size=6),
    st.sampled_from([1, 2, 2**22]),
)
def test_lengths_and_cosines_are_those_of_a_direct_calculation(rows: list[tuple[int, ...]], block: int) -> None:
    updates = np.array([row[:3] for row in rows], np.float64)
    weights = np.array([row[3] for row in rows], np.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update_evidence, "BLOCK_VALUES", block)
        lengths, cosines = lengths_and_cosines(sent_back(dict(enumerate(updates.tolist()))), ("a", "b"), weights)
    np.testing.assert_allclose(lengths, np.linalg.norm(updates, axis=1), rtol=1e-5)
    for k, own in enumerate(updates):
        others = np.delete(weights, k) @ np.delete(updates, k, 0)
        norms = np.linalg.norm(own) * np.linalg.norm(others)
        expected = own @ others / norms if norms else 0.0
        assert cosines[k] == pytest.approx(expected, abs=2e-3)


def honest_round(rng: np.random.Generator, clients: int = 20) -> dict[int, list[float]]:
    """Updates that go roughly one way."""
    return {k: (np.array([1.0, 0.5, -1.0]) + rng.normal(0, 0.3, 3)).tolist() for k in range(clients)}


def test_who_turns_away_or_goes_too_far_stands_out_and_nobody_else() -> None:
    rng = np.random.default_rng(0)
    rounds = []
    for _ in range(10):
        updates = honest_round(rng)
        updates[3] = [-value for value in updates[3]]
        updates[7] = [30 * value for value in updates[7]]
        updates[9] = [0.0, 0.0, 0.0]
        rounds.append(updates)
    scores = evidence(rounds).scores()
    odd = {k for k, score in scores.items() if score.z > 6}
    assert odd == {3, 7, 9}
    assert scores[3].cosine < -0.5
    assert scores[7].norm_ratio == pytest.approx(30, rel=0.3)
    assert "times longer than the median's" in scores[7].text()
    assert "shorter" in scores[9].text()


def test_scores_of_honest_clients_are_those_of_a_robust_z() -> None:
    rng = np.random.default_rng(1)
    rounds = [honest_round(rng, 9) for _ in range(4)]
    logs, cosines = [], []
    for updates in rounds:
        table = np.array(list(updates.values()))
        lengths = np.linalg.norm(table, axis=1)
        logs.append(np.log(lengths / np.median(lengths)))
        bounded = table * np.minimum(1, np.median(lengths) / lengths)[:, None]
        cosines.append([_cosine(table[k], np.delete(bounded, k, 0).mean(0)) for k in range(9)])
    z = []
    for values in (np.mean(logs, 0), np.mean(cosines, 0)):
        spread = max(stats.median_abs_deviation(values, scale="normal"), 0.05)
        z.append((values - np.median(values)) / spread / (1 + 20 / 7**2))
    expected = np.maximum(np.maximum(np.abs(z[0]), -z[1]), 0)
    found = evidence(rounds).scores()
    np.testing.assert_allclose([found[k].z for k in range(9)], expected, atol=1e-3)
    assert all(score.rounds == 4 for score in found.values())


def _cosine(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("factor", [1e3, 1e12, -1e12])
def test_a_liar_with_a_huge_update_makes_nobody_else_look_odd(factor: float) -> None:
    """It outweighs all others in the mean, so that every direction is compared with its own."""
    rng = np.random.default_rng(6)
    rounds = []
    for _ in range(8):
        updates = honest_round(rng)
        updates[2] = [factor * value for value in updates[2]]
        rounds.append(updates)
    scores = evidence(rounds).scores()
    assert {k for k, score in scores.items() if score.z > 6} == {2}


def test_few_honest_clients_are_seldom_called_odd() -> None:
    """The median absolute deviation of five is small by chance one time in thirty; a plain z would be above 6 then."""
    rng = np.random.default_rng(5)
    z = [score.z for _ in range(300) for score in evidence([honest_round(rng, 5)]).scores().values()]
    assert len(z) == 1500
    assert np.mean(np.array(z) > 6) < 0.01


def test_one_odd_round_counts_less_than_many() -> None:
    """Client 3 is far off once, in its only round; client 4 as far in all ten."""
    rng = np.random.default_rng(2)
    rounds = []
    for number in range(10):
        updates = honest_round(rng, 12)
        updates[4] = [-0.2, 0.5, 1.0]
        updates[3] = [-0.2, 0.5, 1.0]
        if number:
            del updates[3]
        rounds.append(updates)
    scores = evidence(rounds).scores()
    assert scores[3].rounds == 1
    assert 0 < scores[3].z < scores[4].z


def test_nobody_is_odd_among_three() -> None:
    assert evidence([{0: [1, 0, 0], 1: [1, 0, 0], 2: [-9, 0, 0]}]).scores() == {}
    assert evidence([{0: [1, 0, 0]}] * 5).scores() == {}


def test_updates_that_are_not_finite_or_do_not_move_end_nothing() -> None:
    updates = {0: [1, 0, 0], 1: [math.nan, 0, 0], 2: [math.inf, 0, 0], 3: [1, 1, 0], 4: [1, 0, 1], 5: [1, 1, 1]}
    scores = evidence([updates]).scores()
    assert scores.keys() == {0, 3, 4, 5}
    assert all(math.isfinite(score.z) for score in scores.values())
    assert evidence([{k: [0, 0, 0] for k in range(5)}]).scores() == {}


def test_updates_are_taken_from_the_version_that_a_client_was_sent() -> None:
    rng = np.random.default_rng(3)
    fresh = sent_back(honest_round(rng, 5))
    older = {name: tensor - 50 for name, tensor in START.items()}
    stale = [
        Reply(
            task=Task(name="train", client=reply.task.client, round=1, version=0, payload={"model": older}),
            payload={"model": {name: tensor - 50 for name, tensor in reply.payload["model"].items()}},
        )
        for reply in fresh[:2]
    ]
    weights = dict.fromkeys(range(5), 1.0)
    found = []
    for replies in (fresh, [*stale, *fresh[2:]]):
        own = UpdateEvidence(("a", "b"))
        own.observe(replies, weights)
        found.append([score.z for score in own.scores().values()])
    np.testing.assert_allclose(*found, rtol=1e-3)


def test_a_restored_evidence_goes_on_with_the_same_bits() -> None:
    rng = np.random.default_rng(4)
    rounds = [honest_round(rng, 6) for _ in range(4)]
    first, second = evidence(rounds[:2]), UpdateEvidence(("a", "b"))
    second.restore({name: np.array(array) for name, array in first.state().items()})
    for updates in rounds[2:]:
        second.observe(sent_back(updates), dict.fromkeys(updates, 1.0))
    assert second.scores() == evidence(rounds).scores()
    UpdateEvidence(("a",)).restore(UpdateEvidence(("a",)).state())
