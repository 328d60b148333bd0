"""FedMatch: two parts of a model moved by different losses, helpers by noise, and a server that lies, written out."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from few_label_clients import CLIENTS, MOST_WAYS_SLOW, changed, epochs_of, training, world
from winnow.core import ConfigError, ModelError, Reply, Task, stream
from winnow.learn.algorithms.fedmatch import OWN, FedMatchServer, FedMatchUpdate
from winnow.learn.augment import strong
from winnow.learn.client_round_method import LocalResult
from winnow.learn.helper_models import chosen_helpers
from winnow.learn.server_optimiser import RoundAggregate
from winnow.learn.stack import TensorData, model_state
from world import experiment

METHOD = FedMatchUpdate(
    threshold=0.36, helper_weight=0.3, agreement_weight=0.4, l2=0.2, l1=0.01, unlabelled_ratio=2, smallest_change=0.0
)
Named = dict[str, Tensor]


def random_parts(model: nn.Module, seed: int, size: float = 0.3) -> Named:
    generator = torch.Generator().manual_seed(seed)
    return {name: size * torch.randn(t.shape, generator=generator) for name, t in model_state(model).items()}


def parts_of(model: nn.Module) -> tuple[Named, dict[str, Tensor], list[dict[str, Any]]]:
    """ψ, a bank of four others' ψ, of which the second is client 0's own, and what the clients 2, 0, 1 kept."""
    bank = [random_parts(model, seed, 1.0) for seed in (1, 2, 3, 4)]
    helpers = {name: torch.stack([each[name] for each in bank]) for name in bank[0]}
    helpers["client"] = torch.tensor([7, 0, 5, 6])
    kept = [{}, *({OWN: random_parts(model, 10 + seed)} for seed in (0, 1))]
    return random_parts(model, 8, 0.1), helpers, kept


def probabilities(model: nn.Module, parameters: Named, x: Tensor) -> Tensor:
    return functional_call(model, parameters, (x,)).softmax(1)


def nearest(model: nn.Module, own: Named | None, others: list[Named], who: list[int], client: int) -> list[Named]:
    if own is None:
        return []
    noise = np.clip(stream(5, "helpers", "noise").normal(0.5, 0.5, 6), 0, 1)
    image = torch.tensor(noise, dtype=torch.float32)[None]
    far = [float((probabilities(model, o, image) - probabilities(model, own, image)).norm()) for o in others]
    return [others[place] for place in np.argsort(far, kind="stable") if who[place] != client][:2]


def by_hand(model: nn.Module, data: TensorData, client: int, own: Named | None) -> tuple[Named, Named]:
    (psi, helpers, _), theta = parts_of(model), model_state(model)
    sigma = {name: theta[name] - psi[name] for name in psi}
    who, count = helpers["client"].tolist(), 4
    others = [{name: sigma[name] + helpers[name][k] for name in sigma} for k in range(count)]
    chosen = nearest(model, own, others, who, client)
    sigma, psi = ({n: t.clone().requires_grad_() for n, t in part.items()} for part in (sigma, psi))
    optimiser = torch.optim.SGD([*sigma.values(), *psi.values()], lr=0.1, momentum=0.5)
    rows = data.rows_of(client)
    known = data.y[rows].numpy() >= 0
    steps = 2 * max(-(-known.sum() // 8), -(-(~known).sum() // 16))
    labelled, unlabelled = (
        epochs_of(rows[known], 8, steps, client),
        epochs_of(rows[~known], 16, steps, client, "phase 1"),
    )
    width = min(16, max(int((data.y[data.rows_of(k)] < 0).sum()) for k in range(3)))
    for step in range(steps):
        x, u = torch.from_numpy(labelled[step]), torch.from_numpy(unlabelled[step])
        now = {name: (sigma[name] + psi[name]).detach() for name in sigma}
        slopes = {name: torch.zeros_like(tensor) for name, tensor in now.items()}
        if len(x):
            leaves = {name: tensor.clone().requires_grad_() for name, tensor in now.items()}
            loss = 10 * functional.cross_entropy(functional_call(model, leaves, (data.x[x],)), data.y[x])
            slopes = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        still = {name: now[name] - 0.1 * slopes[name] - psi[name].detach() for name in now}  # σ after its step
        whole = {name: still[name] + psi[name] for name in psi}
        loss = sum(0.2 * (still[n] - psi[n]).square().sum() + 0.01 * psi[n].abs().sum() for n in psi)
        p = probabilities(model, whole, data.x[u])
        sure = p.max(1).values >= 0.36
        if sure.any():
            told = [probabilities(model, each, data.x[u]) for each in chosen]
            votes = sum(functional.one_hot(each.argmax(1), 3) for each in (p, *told))
            far = changed(strong, "strong", data.x[u], client, step, width)
            loss = loss + 0.4 * functional.cross_entropy(
                functional_call(model, whole, (far[sure],)), votes.argmax(1)[sure]
            )
            for each in told:
                loss = loss + 0.3 / len(told) * functional.kl_div(p[sure].log(), each[sure], reduction="batchmean")
        for name, slope in zip(psi, torch.autograd.grad(loss, list(psi.values())), strict=True):
            psi[name].grad, sigma[name].grad = slope, slopes[name]
        optimiser.step()
    return {n: (sigma[n] + psi[n]).detach() for n in psi}, {n: t.detach() for n, t in psi.items()}


def updated(way: str, method: FedMatchUpdate = METHOD, **parts: Any) -> tuple[nn.Module, TensorData, LocalResult]:
    model, data = world()
    psi, helpers, kept = parts_of(model)
    sent = {"model": model_state(model), "psi": psi, "helpers": helpers, **parts}
    return model, data, method.update(training(model, data, way, sent=sent, stored=kept))


@pytest.mark.parametrize("way", MOST_WAYS_SLOW)
def test_labels_move_one_part_and_helpers_the_other(way: str) -> None:
    model, data, found = updated(way)
    _, _, kept = parts_of(model)
    for place, client in enumerate(CLIENTS.tolist()):
        whole, psi = by_hand(deepcopy(model), data, client, kept[place].get(OWN))
        for name in psi:
            torch.testing.assert_close(found.model[name][place], whole[name], rtol=2e-4, atol=2e-5)
            torch.testing.assert_close(found.parts["psi"][name][place], psi[name], rtol=2e-4, atol=2e-5)
    assert ((found.metrics["sure"] > 0) & (found.metrics["sure"] <= 1)).all()


def test_a_new_client_has_no_helpers_and_nobody_helps_itself() -> None:
    model, data = world()
    psi, helpers, kept = parts_of(model)
    sent = {"model": model_state(model), "psi": psi, "helpers": helpers}
    new, first, second = chosen_helpers(training(model, data, "stacked", sent=sent, stored=kept), OWN, 4)
    assert new == []
    assert sorted(first) == [0, 2, 3], "the bank's second is client 0 itself"
    assert sorted(second) == [0, 1, 2, 3]


def test_small_changes_are_not_made() -> None:
    model, _, found = updated("stacked", METHOD.model_copy(update={"smallest_change": 0.05}))
    came, psi = model_state(model), parts_of(model)[0]
    of_psi, whole = (
        torch.cat([(new[name] - old[name]).flatten() for name in psi])
        for new, old in ((found.parts["psi"], psi), (found.model, came))
    )
    assert 0 < (of_psi == 0).sum() < len(of_psi)
    assert ((of_psi == 0) | (of_psi.abs() >= 0.0499)).all()
    assert (whole[of_psi == 0] == 0).any(), "what does not change is the same to the last bit"


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ({"client": torch.zeros(4, 2)}, "not parts of models like this one"),
        ({"0.weight": torch.zeros(3, 8, 6)}, "not parts of models like this one"),
        ({"more": torch.zeros(4, 8)}, "not parts of models like this one"),
        ({"0.bias": torch.tensor(0.0)}, "not parts of models like this one"),
        ({"0.bias": torch.zeros(4, 8, dtype=torch.float64)}, "not parts of models like this one"),
        ({"0.bias": torch.full((4, 8), torch.nan)}, "not finite"),
    ],
)
def test_a_server_that_sends_other_things_as_helpers_is_refused(lie: Named, message: str) -> None:
    helpers = parts_of(world()[0])[1]
    with pytest.raises(ModelError, match=message):
        updated("stacked", helpers=helpers | lie)


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (None, "not part of a model like this one"),
        ({"0.bias": torch.zeros(3)}, "not part of a model like this one"),
        ({"0.bias": torch.zeros(8, dtype=torch.int64)}, "not part of a model like this one"),
        ({"more": torch.zeros(8)}, "not part of a model like this one"),
        ({"0.bias": torch.full((8,), torch.inf)}, "not finite"),
    ],
)
def test_a_server_that_sends_something_else_as_psi_is_refused(lie: Named | None, message: str) -> None:
    psi = parts_of(world()[0])[0]
    with pytest.raises(ModelError, match=message):
        updated("stacked", psi={} if lie is None else psi | lie)


def test_the_server_renews_helpers_each_ten_rounds_and_splits_means() -> None:
    server, model = FedMatchServer(bank=2), {"w": torch.tensor([1.2, -2.4])}
    state = server.start(model)
    torch.testing.assert_close(server.broadcast(state), {"psi": {"w": torch.tensor([0.2, -0.4])}})

    def round_of(number: float) -> RoundAggregate:
        replies = [
            Reply(
                task=Task(name="train", client=client, round=1, version=0),
                payload={"psi": {"w": torch.full((2,), number + client)}},
            )
            for client in (9, 3, 4)
        ]
        mean = {"w": torch.full((2,), number)}
        return RoundAggregate(
            model=mean, clients=3, population=9, trained_names=("w",), parts={"psi": mean}, replies=replies
        )

    for number in range(12):
        state, moved = server.step(state, model, round_of(float(number)))
        assert moved["w"].tolist() == [number, number]
        sent, first = server.broadcast(state), 0.0 if number < 10 else 10.0
        assert sent["psi"]["w"].tolist() == [number, number]
        assert sent["helpers"]["client"].tolist() == [3, 4]
        assert sent["helpers"]["w"].tolist() == [[first + 3] * 2, [first + 4] * 2]


def test_sums_alone_and_other_optimisers_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"secure.*fedmatch"):
        experiment("collect.name=secure", "select.count=5", algorithm="fedmatch")
    with pytest.raises(ConfigError, match=r"fedmatch.*local"):
        experiment("local={name = 'adam', learning_rate = 0.01}", algorithm="fedmatch")
