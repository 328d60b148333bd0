"""Aggregations that a few clients cannot spoil: against NumPy, and against attackers."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from winnow.core import ConfigError, ModelError, Population, RoundFinished
from winnow.learn.aggregation import AggregationRule, Contribution, PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.algorithms.krum import Krum, MultiKrum
from winnow.learn.algorithms.median_trimmed_mean import Median, TrimmedMean
from winnow.learn.algorithms.norm_bound import NormBound
from world import prepared

ROBUST = [Median(), TrimmedMean(trim=0.3), Krum(), MultiKrum(), NormBound()]
MODEL = {"w": torch.tensor([1.0, -1.0, 0.0]), "n": torch.tensor(4)}


def updates(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, (count, 3)).astype(np.float32)


def fold(rule: AggregationRule, rows: np.ndarray, counts: list[int] | None = None) -> dict[str, torch.Tensor]:
    folding = rule.start(MODEL, Population(sizes=np.arange(1, len(rows) + 1)), len(rows), np.random.default_rng())
    for client, row in enumerate(rows):
        model = {"w": torch.tensor(row, dtype=torch.float32), "n": torch.tensor(10 * client)}
        folding.add(Contribution(model=model, client=client, count=counts[client] if counts else 1))
    return folding.finish()


def krum_order(rows: np.ndarray, f: int) -> list[int]:
    """The updates from the lowest score on, straight from the definition."""
    scores = []
    for i in range(len(rows)):
        others = sorted(float(((rows[i] - rows[j]).astype(np.float64) ** 2).sum()) for j in range(len(rows)) if j != i)
        scores.append(sum(others[: len(rows) - f - 2]))
    return sorted(range(len(rows)), key=lambda i: scores[i])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 10])
def test_median(count: int) -> None:
    rows = updates(count)
    result = fold(Median(), rows)
    np.testing.assert_allclose(result["w"].numpy(), np.median(rows, axis=0), rtol=1e-6)
    assert result["n"].dtype == torch.int64
    assert result["n"].item() == np.median(10 * np.arange(count))


@pytest.mark.parametrize(
    ("count", "trim", "outside"), [(10, 0.1, 1), (100, 0.07, 7), (7, 0.2, 2), (3, 0.1, 1), (2, 0.4, 0)]
)
def test_trimmed_mean(count: int, trim: float, outside: int) -> None:
    rows = updates(count)
    expected = np.sort(rows, axis=0)[outside : count - outside].mean(0)
    np.testing.assert_allclose(fold(TrimmedMean(trim=trim), rows)["w"].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_without_trimming_it_is_the_mean() -> None:
    rows = updates(6)
    np.testing.assert_allclose(fold(TrimmedMean(trim=0.0), rows)["w"].numpy(), rows.mean(0), rtol=1e-5, atol=1e-6)


def test_the_median_counts_a_client_as_often_as_it_was_drawn() -> None:
    rows = updates(3)
    expected = np.median(np.repeat(rows, [3, 1, 1], axis=0), axis=0)
    np.testing.assert_allclose(fold(Median(), rows, [3, 1, 1])["w"].numpy(), expected)


@pytest.mark.parametrize(("count", "f"), [(3, 0), (5, 1), (6, 1), (9, 2), (9, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_krum_is_the_update_with_the_lowest_score(count: int, f: int, seed: int) -> None:
    rows = updates(count, seed)
    result = fold(Krum(attackers=f), rows)
    best = krum_order(rows, f)[0]
    np.testing.assert_array_equal(result["w"].numpy(), rows[best])
    assert result["n"].item() == 10 * best


@pytest.mark.parametrize(("count", "f", "keep"), [(5, 1, None), (5, 1, 2), (9, 3, None), (9, 2, 7), (9, 2, 1)])
def test_multi_krum_is_the_mean_of_the_lowest_scores(count: int, f: int, keep: int | None) -> None:
    rows = updates(count)
    chosen = krum_order(rows, f)[: keep or count - f]
    result = fold(MultiKrum(attackers=f, keep=keep), rows)
    np.testing.assert_allclose(result["w"].numpy(), rows[chosen].mean(0), rtol=1e-5, atol=1e-6)
    assert result["n"].item() == round(10 * np.mean(chosen))


def test_krum_fears_as_many_attackers_as_can_be_withstood() -> None:
    for count, seed in itertools.product((3, 4, 5, 8, 11), range(3)):
        rows = updates(count, seed)
        assert torch.equal(fold(Krum(), rows)["w"], fold(Krum(attackers=(count - 3) // 2), rows)["w"])


def test_of_equal_scores_the_lowest_number_wins() -> None:
    rows = np.array([[5, 5, 5], [1, 0, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0]], np.float32)
    assert fold(Krum(attackers=1), rows)["n"].item() == 10


def test_a_copy_of_ones_own_update_makes_nobody_near() -> None:
    """A client drawn twice counts once: otherwise an attacker would have a neighbour of its own."""
    rows = updates(5)
    rows[4] += 100
    once, twice = fold(Krum(attackers=1), rows), fold(Krum(attackers=1), rows, [1, 1, 1, 1, 9])
    assert torch.equal(once["w"], twice["w"])


@pytest.mark.parametrize("bound", [0.5, 1.5, 100.0, None])
def test_norm_bound(bound: float | None) -> None:
    rows, now = updates(5), MODEL["w"].numpy()
    norms = np.linalg.norm(rows - now, axis=1)
    limit = np.median(norms) if bound is None else bound
    clipped = (rows - now) * np.minimum(1, limit / norms)[:, None]
    expected = now + np.average(clipped, axis=0, weights=np.arange(1, 6))
    result = fold(NormBound(bound=bound), rows)
    np.testing.assert_allclose(result["w"].numpy(), expected, rtol=1e-5, atol=1e-6)
    assert result["n"].item() == round(np.average(10 * np.arange(5), weights=np.arange(1, 6)))


@pytest.mark.parametrize("rule", ROBUST, ids=lambda rule: rule.name)
def test_nothing_folded_leaves_the_model(rule: AggregationRule) -> None:
    assert rule.start(MODEL, Population(sizes=np.ones(3, np.int64)), 3, np.random.default_rng()).finish() is MODEL


@pytest.mark.parametrize("rule", ROBUST, ids=lambda rule: rule.name)
@given(row=st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3), count=st.integers(3, 8))
def test_equal_updates_stay_what_they_are(rule: AggregationRule, row: list[float], count: int) -> None:
    result = fold(rule, np.tile(np.array(row, np.float32), (count, 1)))["w"].numpy()
    far = max(1.0, np.abs(row).max())
    np.testing.assert_allclose(result, row, rtol=1e-5, atol=1e-5 * far)


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(trim=0.3), Krum(), MultiKrum()], ids=lambda rule: rule.name)
@given(
    garbage=st.lists(st.floats(width=32), min_size=6, max_size=6),
    honest=st.lists(st.floats(-1, 1, width=32), min_size=15, max_size=15),
)
def test_a_minority_moves_no_coordinate_beyond_the_honest(
    rule: AggregationRule, garbage: list[float], honest: list[float]
) -> None:
    """Two of seven may send anything, numbers or not."""
    good = np.array(honest, np.float32).reshape(5, 3)
    result = fold(rule, np.vstack([np.array(garbage, np.float32).reshape(2, 3), good]))["w"].numpy()
    assert np.isfinite(result).all()
    if not isinstance(rule, MultiKrum):  # which may average attackers that hide among the honest
        slack = 4 * (good.max() - good.min()) if isinstance(rule, Krum) else 1e-6
        assert (result >= good.min(0) - slack).all()
        assert (result <= good.max(0) + slack).all()


def test_too_few_updates_are_refused_when_the_run_is_prepared() -> None:
    with pytest.raises(ConfigError, match=r"aggregate.name = 'krum' needs 7 updates a round, but select chooses 3"):
        prepared("aggregate.attackers=2", algorithm="krum")
    with pytest.raises(ConfigError, match=r"aggregate.name = 'multi-krum' needs 6 updates .* select chooses 5"):
        prepared("aggregate.attackers=1", "aggregate.keep=5", "select.count=5", algorithm="multi-krum")


def test_too_few_updates_are_one_line() -> None:
    with pytest.raises(ModelError, match=r"^aggregate: this rule needs 5 updates per round, but the round has 4; .+$"):
        fold(Krum(attackers=1), updates(4))


def test_too_few_arrivals_leave_the_model() -> None:
    """A client whose reply is refused must not end the run, and those who are left cannot outvote an attacker."""
    folding = Krum(attackers=1).start(MODEL, Population(sizes=np.ones(5, np.int64)), 5, np.random.default_rng())
    for client, row in enumerate(updates(4)):
        folding.add(Contribution(model={"w": torch.tensor(row), "n": torch.tensor(0)}, client=client))
    assert folding.finish() is MODEL


# Attacks --------------------------------------------------------------------------------------------------------------

ATTACKERS = (1, 4, 6)


def loss_under(attack: str, algorithm: str, *sets: str) -> float:
    """The test loss after some rounds in which three of ten clients send garbage; ln 3 is that of guessing.

    A network may classify well though its weights are garbage a million times too large, so accuracy would not tell.
    """
    ready = prepared(
        "data.clients=10", "data.corruptions=[]", "select.count=10", "rounds=8", *sets, algorithm=algorithm
    )
    honest = ready.federation.handlers["train"]

    def attacked(tasks, site):
        replies = honest(tasks, site)
        for task, reply in zip(tasks, replies, strict=True):
            if task.client in ATTACKERS:
                for name, tensor in reply.payload["model"].items():
                    spoil(attack, tensor, task.payload["model"][name])
        return replies

    ready.federation.handlers["train"] = attacked
    *_, last = (event for event in ready.training.run(ready.federation) if isinstance(event, RoundFinished))
    return last.metrics["test"]["loss"]


def spoil(attack: str, tensor: torch.Tensor, sent: torch.Tensor) -> None:
    if attack == "huge":
        tensor.copy_(1e6 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)))
    elif attack == "flipped":
        tensor.copy_(sent - 10 * (tensor - sent))
    else:
        tensor.fill_(torch.inf)


@pytest.mark.parametrize("attack", ["huge", "flipped"])
def test_attackers_spoil_the_mean(attack: str) -> None:
    assert loss_under(attack, "fedavg-rp") > np.log(3)


@pytest.mark.parametrize("attack", ["huge", "flipped", "infinite"])
@pytest.mark.parametrize(
    ("algorithm", "sets"),
    [
        ("median", ()),
        ("trimmed-mean", ("aggregate.trim=0.3",)),
        ("krum", ("aggregate.attackers=3",)),
        ("multi-krum", ("aggregate.attackers=3",)),
    ],
)
def test_attackers_do_not_spoil(algorithm: str, sets: tuple[str, ...], attack: str) -> None:
    assert loss_under(attack, algorithm, *sets) < np.log(3) / 2


def test_attackers_move_a_bounded_mean_no_further_than_the_bound() -> None:
    """One model a million times as large replaces the mean, but not the bounded one."""
    rows = updates(5)
    rows[0] *= 1e6
    assert np.abs(fold(PartialAggregation(), rows)["w"].numpy()).max() > 1e4
    moved = fold(NormBound(bound=0.5), rows)["w"].numpy() - MODEL["w"].numpy()
    assert np.linalg.norm(moved) <= 0.5 + 1e-6


SENDS_MODELS = sorted(name for name, recipe in Recipe.known.items() if not recipe.filters and name != "ds-fl")


@pytest.mark.parametrize("algorithm", SENDS_MODELS)
def test_one_client_that_sends_no_numbers_spoils_no_algorithm(algorithm: str) -> None:
    """Those with filters of their own send packets, and DS-FL predictions: test_compress_filter and test_ds_fl spoil
    their numbers.
    """
    ready = prepared("select.count=4", algorithm=algorithm)
    honest = ready.federation.handlers["train"]

    def attacked(tasks, site):
        replies = honest(tasks, site)
        for reply in (reply for reply in replies if reply.task.client in ATTACKERS[:1]):
            for tensor in reply.payload["model"].values():
                tensor.fill_(torch.nan)
        return replies

    ready.federation.handlers["train"] = attacked
    for _ in ready.training.run(ready.federation):
        assert all(torch.isfinite(tensor).all() for tensor in ready.training.model.values())
