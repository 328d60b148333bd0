"""FADE: the adversarial step, written out with a layer that reverses gradients, and a domain without labels."""

import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import winnow
from few_label_clients import CLIENTS, LOCAL, MOST_WAYS_SLOW, assert_cohort, changed, epochs_of, training, world
from winnow.core import ConfigError, Reply, Task
from winnow.learn.algorithms.fade import FadeUpdate
from winnow.learn.algorithms.gap_gain import GapGainServer, spread_within_clusters
from winnow.learn.augment import weak
from winnow.learn.extended_model import ExtendedModel, extend_model, loss_of_predictions
from winnow.learn.server_optimiser import RoundAggregate
from winnow.learn.stack import LOSSES, TensorData, choose_execution
from world import experiment

ONCE = LOCAL.model_copy(update={"epochs": 1})


class Reversed(torch.autograd.Function):
    """Forward as it is, back against it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return -ctx.factor * slope, None


def by_hand(start: ExtendedModel, data: TensorData, client: int, factor: float, entropy: bool) -> dict[str, Tensor]:
    net, own = deepcopy(start).train(), data.rows_of(client)
    *before, head = net.model
    known = own[data.y[own].numpy() >= 0]
    steps = -(-len(own) // 8)
    batches = zip(epochs_of(own, 8, steps, client), epochs_of(known, 8, steps, client, "phase 1"), strict=True)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    for step, (rows, labelled) in enumerate(batches):
        optimiser.zero_grad()
        loss = torch.zeros(())
        if len(labelled):
            x = changed(weak, "weak labelled", data.x[torch.from_numpy(labelled)], client, step, 8)
            loss = loss + functional.cross_entropy(net.model(x)[:, :3], data.y[torch.from_numpy(labelled)])
        features = changed(weak, "weak all", data.x[torch.from_numpy(rows)], client, step, 8)
        for layer in before:
            features = layer(features)
        shares = functional.linear(features, head.weight, head.bias).softmax(1)
        pairs = torch.einsum("nc,nf->ncf", shares.detach(), Reversed.apply(features, factor)).flatten(1)
        logit = net.beside.layers(pairs)[:, 0]
        domains = torch.full_like(logit, float(len(known) > 0))
        losses = functional.binary_cross_entropy_with_logits(logit, domains, reduction="none")
        if entropy:
            surprise = torch.special.entr(shares).sum(1)
            losses = losses * (1 + torch.exp(-Reversed.apply(surprise, factor)))
        (loss + losses.mean() ** 2 / 2).backward()
        optimiser.step()
    return dict(net.state_dict())


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("way", MOST_WAYS_SLOW)
def test_the_domain_head_goes_down_and_the_features_up(way: str, entropy: bool) -> None:
    method = FadeUpdate(factor=0.7, hidden=5, entropy=entropy)
    model, data = world()
    whole = extend_model(model, method, data.x[:4], 3, 0, "it")
    assert isinstance(whole, ExtendedModel)
    net = whole.trained_form()
    loss = loss_of_predictions(net, LOSSES["cross-entropy"])
    execution = choose_execution(net, data.x[:4], torch.zeros(4).long(), loss, way, own_steps="it")
    result = method.update(training(net, data, way, local=ONCE, execution=execution))
    now = 0.7 * math.tanh(5 * 1 / 50)  # the second of 50 rounds: 2/(1 + exp(-10p)) - 1 = tanh(5p)
    assert_cohort(result, [by_hand(net, data, client, now, entropy) for client in CLIENTS.tolist()])
    assert result.metrics["labelled"].tolist() == pytest.approx([0, 9 / 25, 11 / 35])


def test_features_begin_to_hide_the_domain_bit_by_bit() -> None:
    method = FadeUpdate(ramp_rounds=10)
    assert method.strength(1) == 0
    assert method.strength(4) == pytest.approx(math.tanh(1.5))
    assert FadeUpdate(ramp_rounds=0).strength(1) == 1


def shifted_owners(folder: Path) -> Path:
    """Two classes, apart along one axis. Two owners' samples lie elsewhere, so far along this axis, too, that what the
    others' labels teach calls most of them one class; a combination of both axes knows nothing of the shift.
    """
    rng = np.random.default_rng(0)
    lines = ["owner,first,second,kind"]
    for owner, shift in (("a", (0, 0)), ("b", (0, 0)), ("c", (5, 4)), ("d", (5, 4))):
        kinds = rng.integers(0, 2, 400)
        places = np.stack([6 * kinds - 3, 0 * kinds], 1) + rng.normal(size=(400, 2)) + shift
        lines += [f"{owner},{x:.4f},{y:.4f},{kind}" for (x, y), kind in zip(places, kinds, strict=True)]
    file = folder / "shifted.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_a_domain_that_is_shifted_is_learnt_without_its_labels(tmp_path: Path) -> None:
    """0.565 without the domain head and 0.96 with it; seed 1: 0.55 and 0.97."""
    settings = {
        "data": {
            "path": str(shifted_owners(tmp_path)),
            "targets": "kind",
            "owner": "owner",
            "test_owners": ["c", "d"],
            "labels": {"at": "some", "without": ["c", "d"]},
            "reference": 200,
            "test": 100,
        },
        "model": {"name": "mlp", "hidden": [8]},
        "algorithm": "fade",
        "rounds": 60,
        "select": {"fraction": 1.0},
        "local": {"name": "sgd", "steps": 3, "batch_size": 32, "learning_rate": 0.1},
        "quality": {"evidence": []},
    }
    alone, helped = (
        winnow.run({**settings, "client": {"factor": factor, "ramp_rounds": 30}}).history[-1]["reference.accuracy"]
        for factor in (0, 5)
    )
    assert helped > alone + 0.2


def test_the_spread_within_clusters_is_that_of_pairs() -> None:
    torch.manual_seed(0)
    groups = [torch.randn(n, 3) * 0.1 + 5 * k for k, n in enumerate((4, 7, 9))]
    pairs = sum(float(torch.cdist(each, each).square().sum()) / (2 * len(each)) for each in groups)
    assert spread_within_clusters(torch.cat(groups), 3) == pytest.approx(pairs, rel=1e-4)


def test_sources_count_by_how_much_they_tighten_the_targets_clusters() -> None:
    """Features are noise around three centres, which lie as far apart as a model's one number says. Shrinking all of
    them, its second number, is no gain.
    """
    torch.manual_seed(1)
    centres, noise = torch.eye(3).repeat(10, 1) * 20, torch.randn(30, 3)

    def share(apart: float) -> float:
        features = (centres * apart + noise).view(10, 3, 3)
        within = (features - features.mean(0)).square().sum()
        return float(within / (features - features.mean((0, 1))).square().sum())

    class Target:
        classes = 3

        def __call__(self, model: Any) -> Tensor:
            features: Tensor = (centres * model["w"][0] + noise) * model["w"][1]
            return features

    replies = [
        Reply(
            task=Task(name="train", client=client, round=1, version=0),
            payload={"model": {"w": torch.tensor([number, size])}},
            metrics={"labelled": known},
        )
        for client, (number, size, known) in enumerate([(2.0, 1.0, 1.0), (0.9, 0.1, 0.2), (4.0, 1.0, 0.0)])
    ]
    aggregate = RoundAggregate(
        model={"w": torch.zeros(2)}, clients=3, population=3, trained_names=("w",), replies=replies, target=Target()
    )
    _, found = GapGainServer(temperature=0.5).step({}, {"w": torch.ones(2)}, aggregate)
    one, other = (math.exp((1 - share(apart) / share(1.0)) / 0.5) for apart in (2.0, 0.9))
    expected = (4.0 + 2 * (2.0 * one + 0.9 * other) / (one + other)) / 3
    assert found["w"][0].item() == pytest.approx(expected, rel=1e-3)


def test_sums_alone_cannot_weigh_sources() -> None:
    with pytest.raises(ConfigError, match="gap-gain"):
        experiment("collect.name=secure", "select.count=5", "server.name=gap-gain", algorithm="fade")
