"""Orchestra: the step at a client, balanced clusters, and the server's centres, written out; clients that lie."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from few_label_clients import CLIENTS, LOCAL, MOST_WAYS_SLOW, changed, epochs_of, training, world
from winnow.core import ConfigError, Population
from winnow.learn.aggregation import Contribution
from winnow.learn.algorithms.orchestra import OWN, SHARED, OrchestraAggregation, OrchestraUpdate
from winnow.learn.augment import view
from winnow.learn.balanced_clusters import balanced_assignments, global_clusters, local_clusters
from winnow.learn.extended_model import ExtendedModel, extend_model
from winnow.learn.sample_draws import SampleDraws, client_keys
from winnow.learn.stack import TensorData
from world import experiment

ONCE = LOCAL.model_copy(update={"epochs": 1})
METHOD = OrchestraUpdate(hidden=8, width=4, clusters=6, own_clusters=3, average=0.9, temperature=0.2)


def extended(*, images: bool = False) -> tuple[ExtendedModel, TensorData]:
    model, data = world(images=images)
    whole = extend_model(model, METHOD, data.x[:4], 3, 0, "it")
    assert isinstance(whole, ExtendedModel)
    return whole.trained_form(), data


def projected(net: ExtendedModel, x: Tensor) -> Tensor:
    *before, _ = net.model
    for layer in before:
        x = layer(x)
    return functional.normalize(net.beside.projector(x))


def by_hand(start: ExtendedModel, data: TensorData, client: int, *, images: bool) -> dict[str, Tensor]:
    online, target, own = deepcopy(start).train(), deepcopy(start).train(), data.rows_of(client)
    centres = start.beside.shared.weight.detach()
    optimiser = torch.optim.SGD(online.parameters(), lr=0.1, momentum=0.5)
    batches = epochs_of(own, 8, -(-len(own) // 8), client)
    for step, rows in enumerate(rows for rows in batches if len(rows) > 1):
        x = data.x[torch.from_numpy(rows)]
        one, other = (changed(view, name, x, client, step, 8) for name in ("first view", "second view"))
        with torch.no_grad():
            goal = (projected(target, other) @ centres.T / 0.2).softmax(1)
        optimiser.zero_grad()
        loss = functional.cross_entropy(projected(online, one) @ centres.T / 0.2, goal)
        if images:
            draws = SampleDraws.of_clients(client_keys(5, [client], "turn", 2), 8, range(step, step + 1)).uniform()
            turns = (4 * draws[: len(rows), 0]).long()
            turned = torch.stack([torch.rot90(image, int(k), (1, 2)) for image, k in zip(one, turns, strict=True)])
            loss = loss + functional.cross_entropy(online.beside.turn(projected(online, turned)), turns)
        loss.backward()
        online.beside.shared.weight.grad = online.beside.own.weight.grad = None
        optimiser.step()
        for slow, quick in zip(target.parameters(), online.parameters(), strict=True):
            slow.data = 0.9 * slow.data + 0.1 * quick.data
    return dict(online.state_dict())


@pytest.mark.parametrize("way", MOST_WAYS_SLOW)
@pytest.mark.parametrize("images", [False, pytest.param(True, marks=pytest.mark.slow(part="executions"))])
def test_views_are_assigned_to_the_same_shared_clusters(way: str, images: bool) -> None:
    net, data = extended(images=images)
    result = METHOD.update(training(net, data, way, local=ONCE))
    for place, client in enumerate(CLIENTS.tolist()):
        for name, tensor in by_hand(net, data, client, images=images).items():
            if name != OWN:
                torch.testing.assert_close(result.model[name][place], tensor, rtol=1e-3, atol=5e-5)
    torch.testing.assert_close(result.model[OWN].norm(dim=2), torch.ones(3, 3))
    assert not result.keep, "clients keep nothing"


def test_assignments_are_balanced() -> None:
    torch.manual_seed(0)
    similarity = torch.randn(60, 5) / 10 + torch.tensor([1.0, 0, 0, 0, 0])
    found = balanced_assignments(similarity)
    torch.testing.assert_close(found.sum(1), torch.ones(60))
    torch.testing.assert_close(found.sum(0), torch.full((5,), 12.0), rtol=0.03, atol=0)
    crossed = (found[:, :1] * found[:1]) / (found * found[0, 0])  # row and column factors cancel
    plain = (25 * similarity.double()).exp()
    expected = (plain[:, :1] * plain[:1]) / (plain * plain[0, 0])
    torch.testing.assert_close(crossed.double(), expected, rtol=1e-3, atol=0)


def directions(count: int, spread: float = 0.05) -> tuple[Tensor, Tensor]:
    """Unit vectors along some axes, as many along each."""
    torch.manual_seed(1)
    axes = torch.eye(count, 8)
    return axes, functional.normalize(axes.repeat(20, 1) + spread * torch.randn(20 * count, 8))


def test_a_client_s_centres_are_those_of_its_clusters() -> None:
    axes, vectors = directions(3)
    found = [local_clusters(3 * vectors, 3, np.random.default_rng(seed)) for seed in range(5)]
    best = max((axes @ each.T).amax(1).min().item() for each in found)
    assert best > 0.99
    one = local_clusters(vectors[:1], 4, np.random.default_rng(0))
    torch.testing.assert_close(one, vectors[:1].expand(4, -1))


def test_the_server_moves_its_centres_to_those_of_clients() -> None:
    axes, vectors = directions(4)
    start = functional.normalize(axes + 0.4 * torch.randn(4, 8))
    moved = global_clusters(5 * vectors, start, 0.1, 300)
    torch.testing.assert_close(moved.norm(dim=1), torch.ones(4))
    shares = [(vectors @ each.T / 0.1).softmax(1) for each in (start, moved)]
    assert shares[1].amax(1).mean() > max(shares[0].amax(1).mean().item(), 0.95), "vectors belong to one more clearly"
    assert sorted((axes @ moved.T).argmax(1).tolist()) == [0, 1, 2, 3], "and each cluster has one"


def folded(models: list[dict[str, Tensor]], like: dict[str, Tensor]) -> dict[str, Tensor]:
    fold = OrchestraAggregation(steps=100).start(
        like, Population(sizes=np.array([10, 30, 20])), 3, np.random.default_rng()
    )
    for client, model in enumerate(models):
        fold.add(Contribution(model=model, client=client, metrics={}))
    return dict(fold.finish())


def test_models_are_averaged_by_samples_and_centres_clustered() -> None:
    axes, vectors = directions(4)
    like = {"model.w": torch.zeros(2), SHARED: functional.normalize(axes + 0.3), OWN: torch.ones(4, 8)}
    models = [
        {"model.w": torch.full((2,), float(k)), SHARED: like[SHARED], OWN: vectors[4 * k :][:4]} for k in range(3)
    ]
    found = folded(models, like)
    torch.testing.assert_close(found["model.w"], torch.full((2,), (0 * 10 + 1 * 30 + 2 * 20) / 60))
    torch.testing.assert_close(found[SHARED], global_clusters(vectors[:12], like[SHARED], 0.1, 100))
    torch.testing.assert_close(found[OWN], like[OWN])


@pytest.mark.parametrize("lie", ["huge", "nothing", "copies"])
def test_a_client_that_lies_has_as_many_votes_as_others(lie: str) -> None:
    """Centres of any length count as directions, none at all is no vote, and the honest ones are found all the same."""
    axes, vectors = directions(4)
    like = {"model.w": torch.zeros(2), SHARED: functional.normalize(axes + 0.3), OWN: torch.ones(4, 8)}
    said: dict[str, Any] = {
        "huge": 1e12 * vectors[:4],
        "nothing": torch.zeros(4, 8),
        "copies": vectors[:1].expand(4, 8),
    }
    honest = [{"model.w": torch.zeros(2), SHARED: like[SHARED], OWN: vectors[4 * k :][:4]} for k in (1, 2)]
    found = folded([*honest, honest[0] | {OWN: said[lie]}], like)
    assert bool(found[SHARED].isfinite().all())
    torch.testing.assert_close(found[SHARED].norm(dim=1), torch.ones(4))
    assert (axes @ found[SHARED].T).amax(1).min() > 0.8


def test_secure_aggregation_refuses_it_by_name() -> None:
    with pytest.raises(ConfigError, match=r"aggregate\.name = 'orchestra' needs every update"):
        experiment("collect.name=secure", algorithm="orchestra")
