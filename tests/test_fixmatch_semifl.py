"""FixMatch and SemiFL, each against its paper's rule written out for one client."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from few_label_clients import CLIENTS, LOCAL, WAYS, assert_cohort, changed, epochs_of, training, world
from winnow.core import stream
from winnow.data import federate
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.run import run_experiment
from winnow.learn.algorithms.fixmatch import FixMatchUpdate
from winnow.learn.algorithms.semifl import SemiFlUpdate
from winnow.learn.augment import strong, weak
from winnow.learn.stack import TensorData, model_state
from world import blobs, experiment, prepared


def fixmatch_by_hand(model: nn.Module, data: TensorData, client: int, method: FixMatchUpdate) -> dict[str, Tensor]:
    """CE(f(w(x)), y) + λ/(μB)·Σ 1[max p(w(u)) ≥ τ]·CE(f(s(u)), argmax p(w(u))), by torch's SGD; its gradient bounded to
    a norm, and FedProx's μ·(θ − θ₀) added to it.
    """
    net, own = deepcopy(model), data.rows_of(client)
    known = data.y[own].numpy() >= 0
    large = LOCAL.batch_size * method.unlabelled_ratio
    steps = 2 * max(-(-known.sum() // LOCAL.batch_size), -(-(~known).sum() // large))
    labelled = epochs_of(own[known], LOCAL.batch_size, steps, client)
    others = epochs_of(own[~known], large, steps, client, "phase 1")
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    start = {name: tensor.detach().clone() for name, tensor in net.named_parameters()}
    for step in range(steps):
        optimiser.zero_grad()
        rows, far = torch.from_numpy(labelled[step]), torch.from_numpy(others[step])
        loss = torch.zeros(())
        if len(rows):
            x = changed(weak, "weak labelled", data.x[rows], client, step, 8)
            loss = loss + functional.cross_entropy(net(x), data.y[rows])
        if len(far):
            gently = changed(weak, "weak unlabelled", data.x[far], client, step, large)
            with torch.no_grad():
                confidence, guess = net(gently).softmax(1).max(1)
            hard = changed(strong, "strong", data.x[far], client, step, large)
            losses = functional.cross_entropy(net(hard), guess, reduction="none")
            loss = loss + method.unlabelled_weight * (losses * (confidence >= method.threshold)).mean()
        loss.backward()
        if method.clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), method.clip)
        for name, tensor in net.named_parameters():
            assert tensor.grad is not None
            tensor.grad += method.mu * (tensor.detach() - start[name])
        optimiser.step()
    return dict(net.state_dict())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("images", [False, True])
def test_fixmatch_follows_its_rule(way: str, images: bool) -> None:
    model, data = world(images=images)
    clip = 0.3 if images else None
    method = FixMatchUpdate(threshold=0.45, unlabelled_weight=0.7, unlabelled_ratio=2, mu=0.1, clip=clip)
    result = method.update(training(model, data, way))
    assert_cohort(result, [fixmatch_by_hand(model, data, client, method) for client in CLIENTS.tolist()])
    sure = result.metrics["sure"]
    assert ((sure > 0.2) & (sure < 1)).all(), "or the threshold is not tried"


def test_without_labels_or_sure_guesses_fixmatch_stands_still() -> None:
    model, data = world()
    result = FixMatchUpdate(threshold=1.0).update(training(model, data, "stacked", np.array([2])))
    for name, tensor in model_state(model).items():
        assert torch.equal(result.model[name][0], tensor)
    assert result.metrics["sure"].item() == 0
    assert result.trained.loss.item() == 0


def semifl_by_hand(model: nn.Module, data: TensorData, client: int, method: SemiFlUpdate) -> tuple[Any, float]:
    """CE(f(s(x)), ŷ) + λ·CE(f(x'), ŷ) + (1 − λ)·CE(f(x'), ŷ'), gradients bounded to a norm, by torch's SGD."""
    net, own = deepcopy(model), data.rows_of(client)
    with torch.no_grad():
        confidence, guess = net(data.x).softmax(1).max(1)
    fixed = own[(confidence[own] >= method.threshold).numpy()]
    steps = 2 * -(-len(fixed) // 8)
    sure, order = epochs_of(fixed, 8, steps, client), stream(5, "batches", 2, client, "phase 1")
    mixed = own[order.integers(len(own), size=(steps, 8))]
    shares = stream(5, "mix", 2, client).beta(method.alpha, method.alpha, steps)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    for step in range(steps):
        optimiser.zero_grad()
        x, u = torch.from_numpy(sure[step]), torch.from_numpy(mixed[step])
        hard = changed(strong, "strong", data.x[x], client, step, 8)
        one = changed(weak, "weak sure", data.x[x], client, step, 8)
        other = changed(weak, "weak any", data.x[u], client, step, 8)[: len(x)]
        share = float(shares[step])
        between = net(share * one + (1 - share) * other)
        loss = functional.cross_entropy(net(hard), guess[x]) + share * functional.cross_entropy(between, guess[x])
        loss = loss + (1 - share) * functional.cross_entropy(between, guess[u][: len(x)])
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), method.clip)
        optimiser.step()
    return dict(net.state_dict()), len(fixed) / len(own)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("images", [False, True])
def test_semifl_follows_its_rule(way: str, images: bool) -> None:
    model, data = world(images=images)
    method = SemiFlUpdate(threshold=0.45, clip=0.5)
    result = method.update(training(model, data, way))
    by_hand = [semifl_by_hand(model, data, client, method) for client in CLIENTS.tolist()]
    assert_cohort(result, [state for state, _ in by_hand])
    assert result.metrics["sure"].tolist() == pytest.approx([share for _, share in by_hand])
    assert all(0.2 < share < 1 for _, share in by_hand), "or the threshold is not tried"


def test_clients_without_a_sure_sample_stay_out_of_semifl() -> None:
    model, data = world()
    result = SemiFlUpdate(threshold=1.0).update(training(model, data, "stacked"))
    assert list(result.stay_out) == [0, 1, 2]


def test_reports_show_sure_labels_and_in_a_simulation_how_many_are_right(tmp_path: Path) -> None:
    """And nothing that clients or the server do depends on the hidden labels."""
    result = run_experiment(experiment("rounds=3", algorithm="semifl"), inputs=RunInputs(dataset=blobs()), out=tmp_path)
    told = result.history[-1]["pseudo-labels.sure"]
    assert 0 < told <= 1
    known = result.view.evaluation.pseudo_labels
    ready = prepared("rounds=3", algorithm="semifl")
    data, model = ready.simulation.site.data, deepcopy(ready.module)
    model.load_state_dict(load_file(tmp_path / "last.safetensors"))
    assert known.samples == len(data.rows)
    with torch.no_grad():
        confidence, guess = model(data.x[data.rows]).softmax(1).max(1)
    assert known.sure == pytest.approx((confidence >= 0.5).float().mean().item())
    truth = federate(blobs(), experiment(algorithm="semifl").data, 0).hidden_labels[data.rows]
    assert known.right == pytest.approx((guess.numpy() == truth)[(confidence >= 0.5).numpy()].mean())
    page = (tmp_path / "report.html").read_text()
    assert "Of these, right" in page
