"""Client methods, and what belongs to them at the server, against calculations by hand over three rounds."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from one_point import COPIES, ByHand, played, ready, vector
from selecting import selection_context
from winnow.core import ConfigError, Population, Until
from winnow.experiment.build_simulation import PreparedRun
from winnow.learn.algorithms.ditto import PERSONAL
from winnow.learn.local_optimiser import Sgd
from winnow.learn.selection import SelectedClients, _UniformSelection
from world import experiment

MOMENTUM = ["local.momentum=0.0", "local.momentum=0.9"]
CLOSE = {"rtol": 2e-5, "atol": 1e-5}

Round = Callable[[ByHand, np.ndarray, list[int]], np.ndarray]


def follow(prepared: PreparedRun, one_round: Round) -> None:
    """Every version of the run is what the calculation makes of the one before it and of those who were invited."""
    hand, theta = ByHand.of(prepared), vector(prepared.training.model)
    rounds = played(prepared)
    assert len(rounds) == 3
    for clients, folded, model in rounds:
        assert sorted(folded) == clients
        theta = one_round(hand, theta, clients)
        np.testing.assert_allclose(model, theta, **CLOSE)


def mean_of(hand: ByHand, clients: list[int], values: list[np.ndarray]) -> np.ndarray:
    return np.average(values, axis=0, weights=hand.sizes[clients])


def test_the_hand_and_the_machine_agree_on_plain_training() -> None:
    """Clients take different numbers of steps; without that, FedNova would have nothing to do."""
    prepared = ready("fedavg-rp")
    assert len({ByHand.of(prepared).steps(k) for k in range(len(COPIES))}) > 2
    follow(prepared, lambda hand, theta, s: mean_of(hand, s, [hand.train(k, theta) for k in s]))


@pytest.mark.parametrize("momentum", MOMENTUM)
def test_fedprox(momentum: str) -> None:
    prepared = ready("fedprox", momentum, "client.mu=0.7")
    follow(prepared, lambda hand, theta, s: np.mean([hand.train(k, theta, proximal_weight=0.7) for k in s], axis=0))


@pytest.mark.parametrize("momentum", MOMENTUM)
def test_feddyn(momentum: str) -> None:
    alpha, h = 0.3, np.zeros(4)
    gradients = np.zeros((len(COPIES), 4))

    def one_round(hand: ByHand, theta: np.ndarray, s: list[int]) -> np.ndarray:
        trained = {k: hand.train(k, theta, proximal_weight=alpha, gradient_offset=-gradients[k]) for k in s}
        for k in s:
            gradients[k] -= alpha * (trained[k] - theta)
            h[:] -= alpha / len(COPIES) * (trained[k] - theta)
        return np.mean(list(trained.values()), axis=0) - h / alpha

    follow(ready("feddyn", momentum, f"client.alpha={alpha}", f"server.alpha={alpha}"), one_round)


@pytest.mark.parametrize("momentum", MOMENTUM)
def test_fednova(momentum: str) -> None:
    def one_round(hand: ByHand, theta: np.ndarray, s: list[int]) -> np.ndarray:
        p = hand.sizes[s] / hand.sizes[s].sum()
        norms = [sum((1 - hand.momentum**t) / (1 - hand.momentum) for t in range(1, hand.steps(k) + 1)) for k in s]
        d = [(theta - hand.train(k, theta)) / norm for k, norm in zip(s, norms, strict=True)]
        return theta - (p @ norms) * (p @ np.array(d))

    follow(ready("fednova", momentum), one_round)


@pytest.mark.parametrize("momentum", MOMENTUM)
def test_scaffold(momentum: str) -> None:
    controls, common = np.zeros((len(COPIES), 4)), np.zeros(4)

    def one_round(hand: ByHand, theta: np.ndarray, s: list[int]) -> np.ndarray:
        trained = {k: hand.train(k, theta, gradient_offset=common - controls[k]) for k in s}
        changes = []
        for k in s:
            reach = sum((1 - hand.momentum**t) / (1 - hand.momentum) for t in range(1, hand.steps(k) + 1))
            changes.append((theta - trained[k]) / (reach * hand.rate) - common)
            controls[k] += changes[-1]
        common[:] += np.sum(changes, axis=0) / len(COPIES)
        return np.mean(list(trained.values()), axis=0)

    follow(ready("scaffold", momentum), one_round)


def test_ditto_trains_a_model_of_ones_own_beside_the_common_one() -> None:
    prepared, pull = ready("ditto", "local.momentum=0.5", "client.proximal_weight=0.4"), 0.4
    personal: dict[int, np.ndarray] = {}

    def one_round(hand: ByHand, theta: np.ndarray, s: list[int]) -> np.ndarray:
        for k in s:
            personal[k] = hand.train(k, personal.get(k, theta), proximal_weight=pull, anchor=theta)
        return mean_of(hand, s, [hand.train(k, theta) for k in s])

    follow(prepared, one_round)
    for k, own in personal.items():
        kept = prepared.federation.store.read(k)
        np.testing.assert_allclose(vector(kept[PERSONAL]), own, **CLOSE)
        used = prepared.experiment.client.personal_model(prepared.training.model, kept)
        np.testing.assert_array_equal(vector(used), vector(kept[PERSONAL]))
    newcomer = prepared.experiment.client.personal_model(prepared.training.model, {})
    np.testing.assert_array_equal(vector(newcomer), vector(prepared.training.model))


def test_ditto_costs_two_trainings() -> None:
    def seconds(algorithm: str) -> float:
        prepared = ready(algorithm)
        return sum(
            event.cost.training_seconds
            for event in prepared.training.run(prepared.federation)
            if event.kind == "round_finished"
        )

    assert seconds("ditto") == pytest.approx(2 * seconds("fedavg-rp"))


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 3.0])
def test_qfedavg(q: float) -> None:
    def one_round(hand: ByHand, theta: np.ndarray, s: list[int]) -> np.ndarray:
        lipschitz = 1 / hand.rate
        deltas, h = [], 0.0
        for k in s:
            loss, change = hand.loss(k, theta), lipschitz * (theta - hand.train(k, theta))
            deltas.append(loss**q * change)
            h += q * loss ** (q - 1) * change @ change + lipschitz * loss**q
        return theta - np.sum(deltas, axis=0) / h

    follow(ready("qfedavg", f"aggregate.q={q}"), one_round)


def test_qfedavg_draws_clients_by_the_size_of_their_data() -> None:
    """p_k = n_k/n (algorithm 2, line 3), once a round."""
    select = ready("qfedavg", "select.count=1").experiment.select
    sizes = np.array([10, 30, 60])
    selection = select.start(Population(sizes=sizes))
    seen = Counter(int(selection.propose(selection_context(1, seed=seed)).clients[0]) for seed in range(2_000))
    assert stats.chisquare([seen[k] for k in range(3)], 2_000 * sizes / 100).pvalue > 1e-4


@pytest.mark.parametrize("order", ["fixed", "shuffled"])
def test_cyclic_hands_the_model_from_client_to_client(order: str) -> None:
    prepared = ready("cyclic", f"schedule.order={order}", "rounds=4", "select.count=4")
    hand, theta = ByHand.of(prepared), vector(prepared.training.model)
    orders = set()
    for _, folded, model in played(prepared):
        orders.add(tuple(folded))
        for k in folded:
            theta = hand.train(k, theta)
        np.testing.assert_allclose(model, theta, **CLOSE)
    assert orders == {(0, 1, 2, 3)} if order == "fixed" else len(orders) > 1


def test_cyclic_takes_as_long_as_all_hops_together() -> None:
    prepared = ready("cyclic")
    before = 0.0
    for event in prepared.training.run(prepared.federation):
        if event.kind == "round_finished":
            assert event.at - before == pytest.approx(event.cost.seconds)
            before = event.at


def test_cyclic_passes_over_a_client_that_fails() -> None:
    prepared = ready("cyclic", "select.count=4", "rounds=1")
    hand, theta = ByHand.of(prepared), vector(prepared.training.model)
    honest = prepared.federation.handlers["train"]

    def sometimes(tasks, site):
        replies = honest(tasks, site)
        for reply in replies:
            if reply.task.client == 1:
                next(iter(reply.payload["model"].values())).fill_(torch.nan)
        return replies

    prepared.federation.handlers["train"] = sometimes
    [(_, folded, model)] = played(prepared)
    assert folded == [0, 2, 3]
    for k in folded:
        theta = hand.train(k, theta)
    np.testing.assert_allclose(model, theta, **CLOSE)


@pytest.mark.parametrize("nesterov", [False, True])
def test_reach_is_the_way_along_gradients_of_one(nesterov: bool) -> None:
    local = Sgd(momentum=0.7, nesterov=nesterov)
    weight = torch.zeros(1, requires_grad=True)
    optimiser = torch.optim.SGD([weight], lr=1.0, momentum=0.7, nesterov=nesterov)
    for steps in range(1, 6):
        weight.grad = torch.ones(1)
        optimiser.step()
        assert local.effective_steps(torch.tensor([steps])).item() == pytest.approx(-weight.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "change", "line"),
    [
        (
            "scaffold",
            "client.name=plain",
            "server.name = 'scaffold' requires client.name = 'control-variates'; it is 'plain'",
        ),
        ("scaffold", "server.name=replace", "client.name = 'control-variates' requires server.name = 'scaffold'"),
        (
            "feddyn",
            "server.name=adam",
            "client.name = 'dynamic-regulariser' requires server.name = 'feddyn'; it is 'adam'",
        ),
        ("feddyn", "client.alpha=0.5", "client.alpha = 0.5 and server.alpha = 0.01 must be equal; set both alike"),
        ("fednova", "client.name=proximal", "server.name = 'fednova' requires client.name = 'normalised'"),
        (
            "cyclic",
            "aggregate.name=median",
            "schedule.name = 'cyclic' requires aggregate.name = 'partial'; it is 'median'",
        ),
        ("fednova", "schedule.name=cyclic", "client.name = 'normalised' needs the server"),
        (
            "qfedavg",
            "schedule.name=buffered",
            "aggregate.name = 'fair' requires schedule.name = 'rounds'; it is 'buffered'",
        ),
    ],
)
def test_parts_that_do_not_go_together_are_refused_in_one_line(algorithm: str, change: str, line: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        experiment(change, algorithm=algorithm)
    assert line in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("until", "visited"), [(Until(replies=2), [0, 1]), (Until(seconds=0.0), [])])
def test_cyclic_goes_on_for_as_long_as_the_invitation_says(until: Until, visited: list[int], monkeypatch) -> None:
    prepared = ready("cyclic", "rounds=1")
    everyone = SelectedClients(clients=np.arange(4), counts=np.ones(4, np.int64), until=until)
    monkeypatch.setattr(_UniformSelection, "propose", lambda self, context: everyone)
    [(_, folded, _)] = played(prepared)
    assert folded == visited
