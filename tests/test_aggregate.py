"""Aggregation rules against sums written out by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import winnow
from winnow.core import ConfigError, Population
from winnow.learn.aggregation import (
    AggregationRule,
    Contribution,
    FullAggregation,
    PartialAggregation,
    TrustAggregation,
)
from winnow.learn.selection import TrustSelector

SIZES = np.array([10, 30, 60, 100])
POPULATION = Population(sizes=SIZES)
RNG = np.random.default_rng()
GLOBAL = {"w": torch.tensor([1.0, -1.0]), "n": torch.tensor(4)}
UPDATES = {
    1: {"w": torch.tensor([3.0, 5.0]), "n": torch.tensor(7)},
    2: {"w": torch.tensor([6.0, 0.0]), "n": torch.tensor(9)},
}


def aggregate(rule: AggregationRule, counts: dict[int, int] | None = None) -> dict[str, torch.Tensor]:
    drawn = counts or dict.fromkeys(UPDATES, 1)
    fold = rule.start(GLOBAL, POPULATION, sum(drawn.values()), RNG)
    for client, count in drawn.items():
        fold.add(Contribution(model=UPDATES[client], client=client, count=count))
    return fold.finish()


def expect(result: dict[str, torch.Tensor], weights: dict[int, float], rest: float = 0.0) -> None:
    by_hand = rest * GLOBAL["w"].numpy()
    for client, weight in weights.items():
        by_hand = by_hand + weight * UPDATES[client]["w"].numpy()
    np.testing.assert_allclose(result["w"].numpy(), by_hand, rtol=1e-6)


def test_partial_weighs_participants_by_size() -> None:
    expect(aggregate(PartialAggregation()), {1: 30 / 90, 2: 60 / 90})


def test_partial_uniform() -> None:
    expect(aggregate(PartialAggregation(weights="uniform")), {1: 1 / 2, 2: 1 / 2})


def test_partial_scheme_2() -> None:
    expect(aggregate(PartialAggregation(weights="scheme-2")), {1: 4 / 2 * 30 / 200, 2: 4 / 2 * 60 / 200})


NAMES = ("north", "south", "east", "west")
TRUST = {"west": 0.0, "south": 0.9, "client 2": 0.3, "north": 0.5}


def test_trust_weighs_participants_by_name() -> None:
    by_size = TrustAggregation(trust=TRUST).for_clients(NAMES)
    expect(aggregate(by_size), {1: 27 / 45, 2: 18 / 45})
    expect(aggregate(TrustAggregation(trust=TRUST, weights="uniform").for_clients(NAMES)), {1: 0.75, 2: 0.25})
    expect(aggregate(by_size, {1: 2, 2: 1}), {1: 54 / 72, 2: 18 / 72})
    nobody = TrustAggregation(trust={**TRUST, "south": 0.0, "client 2": 0.0}).for_clients(NAMES)
    assert torch.equal(aggregate(nobody)["w"], GLOBAL["w"])


@pytest.mark.parametrize(
    ("trust", "line"),
    [
        ({**TRUST, "nord": 1.0}, r"aggregate.trust: there is no client 'nord'; did you mean 'north'\?"),
        ({"north": 1.0, "south": 1.0}, "aggregate.trust does not name east, west; a client that must not count"),
        (dict.fromkeys(NAMES, 0.0), "aggregate.trust is 0 for all clients"),
        ({**dict.fromkeys(NAMES, 1.0), "client 2": 0.5}, "aggregate.trust names a client twice"),
    ],
)
def test_trust_of_others_than_the_clients_is_refused(trust: dict[str, float], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        TrustAggregation(trust=trust).for_clients(NAMES)
    with pytest.raises(ConfigError, match=line.replace("aggregate", "select")):
        TrustSelector(trust=trust).for_clients(NAMES)


def test_trust_counts_in_a_run_by_the_owners_names() -> None:
    """With trust in one client alone, the next model is that client's own; otherwise it is their weighted mean."""
    rng = np.random.default_rng(3)
    names, sizes = ("ada", "bea", "cy"), (60, 120, 240)
    x = rng.normal(size=(sum(sizes), 4))
    frame = {f"x{k}": x[:, k] for k in range(4)} | {"y": x[:, 0] > 0, "owner": np.repeat(names, sizes)}

    def after_a_round(**parts: dict[str, object]) -> dict[str, torch.Tensor]:
        settings = {"targets": "y", "owner": "owner", "algorithm": "fedavg", "rounds": 1, "select": {"fraction": 1.0}}
        return winnow.run(data=frame, progress=False, **{**settings, **parts}).personal(0).state_dict()

    def model_after_a_round(**trust: float) -> dict[str, torch.Tensor]:
        return after_a_round(aggregate={"name": "trust", "weights": "uniform", "trust": trust})

    own = [model_after_a_round(**{name: float(name == other) for name in names}) for other in names]
    mixed = model_after_a_round(ada=0.2, cy=1.5, bea=0.3)
    for name, tensor in mixed.items():
        torch.testing.assert_close(tensor, 0.1 * own[0][name] + 0.15 * own[1][name] + 0.75 * own[2][name])
    one = {"name": "trust", "trust": {"ada": 0.0, "bea": 0.4, "cy": 0.0}}
    selected = after_a_round(select=one, aggregate={"name": "partial"})
    for name, tensor in selected.items():
        torch.testing.assert_close(tensor, own[1][name], msg="who is not trusted at all is never selected")
    with pytest.raises(ConfigError, match=r"aggregate.trust does not name bea, cy; a client"):
        model_after_a_round(ada=1.0)
    with pytest.raises(ConfigError, match=r"select.trust does not name bea, cy; a client"):
        after_a_round(select={"name": "trust", "trust": {"ada": 1.0}})


def test_full_keeps_the_previous_model_for_those_left_out() -> None:
    expect(aggregate(FullAggregation()), {1: 30 / 200, 2: 60 / 200}, rest=110 / 200)


def test_drawn_twice_counts_twice() -> None:
    expect(aggregate(PartialAggregation(), {1: 2, 2: 1}), {1: 60 / 120, 2: 60 / 120})
    expect(aggregate(PartialAggregation(weights="uniform"), {1: 2, 2: 1}), {1: 2 / 3, 2: 1 / 3})


def test_with_full_aggregation_a_client_has_one_entry_however_often_drawn() -> None:
    expect(aggregate(FullAggregation(), {1: 2, 2: 1}), {1: 30 / 200, 2: 60 / 200}, rest=110 / 200)


@pytest.mark.parametrize(
    "rule",
    [
        FullAggregation(),
        PartialAggregation(),
        PartialAggregation(weights="uniform"),
        PartialAggregation(weights="scheme-2"),
    ],
)
def test_nothing_folded_leaves_the_model(rule: AggregationRule) -> None:
    result = rule.start(GLOBAL, POPULATION, 2, RNG).finish()
    assert torch.equal(result["w"], GLOBAL["w"])


@pytest.mark.parametrize("rule", [FullAggregation(), PartialAggregation()])
def test_types_are_kept_and_integers_rounded(rule: AggregationRule) -> None:
    result = aggregate(rule)
    assert result["n"].dtype == torch.int64
    assert result["w"].dtype == torch.float32
    assert 4 <= result["n"].item() <= 9


@given(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=8))
def test_equal_models_stay_what_they_are(values: list[float]) -> None:
    model = {"w": torch.tensor(values)}
    for rule in (FullAggregation(), PartialAggregation(), PartialAggregation(weights="uniform")):
        fold = rule.start(model, POPULATION, 4, RNG)
        for client in range(4):
            fold.add(Contribution(model=model, client=client))
        torch.testing.assert_close(fold.finish()["w"], model["w"])
