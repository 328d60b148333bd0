"""BYOL at clients, FedU and FedEMA, written out; heads beside a model; the linear probe."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional

import winnow
from few_label_clients import CLIENTS, LOCAL, MOST_WAYS_SLOW, assert_cohort, changed, epochs_of, training, world
from winnow.core import ConfigError, ModelError, RoundFinished
from winnow.learn.algorithms.fed_byol import AveragedByolUpdate
from winnow.learn.algorithms.fedema import SCALE, FedEmaUpdate
from winnow.learn.algorithms.fedu import FedUUpdate
from winnow.learn.augment import view
from winnow.learn.byol import ONLINE, TARGET, ByolUpdate
from winnow.learn.extended_model import ExtendedModel, extend_model
from winnow.learn.linear_probe import fit_linear_classifier
from winnow.learn.stack import TensorData, model_state
from world import blobs, experiment, prepared

ONCE = LOCAL.model_copy(update={"epochs": 1})
SMALL: dict[str, Any] = {"hidden": 8, "width": 4}


def extended(method: ByolUpdate, *, images: bool = False) -> tuple[ExtendedModel, TensorData]:
    model, data = world(images=images)
    whole = extend_model(model, method, data.x[:4], 3, 0, "it")
    assert isinstance(whole, ExtendedModel)
    return whole.trained_form(), data


def parts(net: ExtendedModel, x: Tensor) -> tuple[Tensor, Tensor]:
    """z and q, without the model's own way there."""
    features = x
    *before, _ = net.model
    for layer in before:
        features = layer(features)
    z = net.beside.projector(features)
    return z, net.beside.predictor(z)


def apart(q: Tensor, z: Tensor) -> Tensor:
    return (functional.normalize(q) - functional.normalize(z)).square().sum(1).mean()


def relation(vectors: Tensor, refs: Tensor) -> Tensor:
    return (functional.normalize(vectors) @ functional.normalize(refs).T / 0.1).softmax(1)


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    m = (p + q) / 2
    return ((p * (p / m).log()).sum(1) + (q * (q / m).log()).sum(1)).mean() / 2


def fedx(q: Tensor, common: list[Tensor], slow: list[Tensor]) -> Tensor:
    """Global contrast and relation, and local relation."""
    mine = relation(q, common[1])
    contrast = -mine.diagonal().log().mean()
    local = jensen_shannon(relation(q, slow[1]), relation(slow[0], slow[1]))
    return contrast + jensen_shannon(mine, relation(common[0], common[1])) + local


def by_hand(
    start: ExtendedModel, target: ExtendedModel, data: TensorData, client: int, average: float, weight: float = 0.0
) -> tuple[Any, Any]:
    common = deepcopy(start).train()
    online, target, own = deepcopy(start).train(), deepcopy(target).train(), data.rows_of(client)
    optimiser = torch.optim.SGD(online.parameters(), lr=0.1, momentum=0.5)
    batches = epochs_of(own, 8, -(-len(own) // 8), client)
    for step, rows in enumerate(rows for rows in batches if len(rows) > 1):  # one sample has no batch statistics
        x = data.x[torch.from_numpy(rows)]
        one, other = (changed(view, name, x, client, step, 8) for name in ("first view", "second view"))
        with torch.no_grad():
            goals = [parts(target, each)[0] for each in (one, other)]
            came = [parts(common, each)[0] for each in (one, other)]
        optimiser.zero_grad()
        q = parts(online, one)[1]
        loss = apart(q, goals[1]) + apart(parts(online, other)[1], goals[0])
        (loss + weight * fedx(q, came, goals)).backward()
        optimiser.step()
        for slow, quick in zip(target.parameters(), online.parameters(), strict=True):
            slow.data = average * slow.data + (1 - average) * quick.data
    return dict(online.state_dict()), dict(target.state_dict())


@pytest.mark.parametrize("way", MOST_WAYS_SLOW)
@pytest.mark.parametrize("images", [False, pytest.param(True, marks=pytest.mark.slow(part="executions"))])
def test_one_view_is_predicted_from_another(way: str, images: bool) -> None:
    method = AveragedByolUpdate(average=0.9, **SMALL)
    net, data = extended(method, images=images)
    result = method.update(training(net, data, way, local=ONCE))
    assert_cohort(result, [by_hand(net, net, data, client, 0.9)[0] for client in CLIENTS.tolist()])
    assert not result.keep


@pytest.mark.parametrize("way", MOST_WAYS_SLOW)
def test_fedx_distils_the_global_network(way: str) -> None:
    method = FedUUpdate(average=0.9, fedx=0.5, **SMALL)
    net, data = extended(method)
    result = method.update(training(net, data, way, local=ONCE))
    for place, client in enumerate(CLIENTS.tolist()):
        for name, tensor in by_hand(net, net, data, client, 0.9, weight=0.5)[0].items():
            torch.testing.assert_close(result.model[name][place], tensor, rtol=1e-3, atol=1e-4)
    assert result.keep[TARGET].keys() == result.model.keys(), "the global network is not kept"


def moved(net: ExtendedModel, seed: int) -> ExtendedModel:
    torch.manual_seed(seed)
    other = deepcopy(net)
    for tensor in other.parameters():
        tensor.data += 0.1 * torch.randn_like(tensor)
    return other


def mean_distance(one: ExtendedModel, other: ExtendedModel) -> float:
    """Over weights before the last layer."""
    names = [name for name, tensor in one.model.named_parameters() if tensor.dim() > 1][:-1]
    a, b = dict(one.model.named_parameters()), dict(other.model.named_parameters())
    return float(np.mean([(a[name] - b[name]).norm().item() for name in names]))


def kept(online: ExtendedModel, target: ExtendedModel, **further: Any) -> dict[str, Any]:
    return {ONLINE: model_state(online), TARGET: model_state(target), **further}


def test_fedema_mixes_by_the_first_divergence() -> None:
    """Of three clients one is new, one has a network, and one a network and a scale from earlier."""
    method = FedEmaUpdate(tau=0.6, average=0.9, **SMALL)
    net, data = extended(method)
    near, far, target = moved(net, 1), moved(net, 2), moved(net, 3)
    scale = 0.1 / mean_distance(net, far)
    stored = ({}, kept(near, target), kept(far, target, **{SCALE: {SCALE: torch.tensor([scale])}}))
    result = method.update(training(net, data, "stacked", stored=stored, local=ONCE))
    starts = []
    for own, share in ((net, 0.0), (near, 0.6), (far, 0.1)):
        mixed = deepcopy(net)
        for tensor, mine in zip(mixed.parameters(), own.parameters(), strict=True):
            tensor.data = (1 - share) * tensor.data + share * mine.data
        starts.append(mixed)
    ends = [
        by_hand(start, net if place == 0 else target, data, client, 0.9)
        for place, (start, client) in enumerate(zip(starts, CLIENTS.tolist(), strict=True))
    ]
    assert_cohort(result, [online for online, _ in ends])
    for place, (_, end) in enumerate(ends):
        for name, tensor in end.items():
            torch.testing.assert_close(result.keep[TARGET][name][place], tensor, rtol=1e-4, atol=1e-5)
    scales = result.keep[SCALE][SCALE].flatten().tolist()
    assert scales == pytest.approx([0.0, 0.6 / mean_distance(net, near), scale], rel=1e-4)


def test_a_client_never_takes_more_than_its_own_network() -> None:
    method = FedEmaUpdate(tau=0.7, **SMALL)
    net, data = extended(method)
    far = moved(net, 2)
    stored = (kept(far, net, **{SCALE: {SCALE: torch.tensor([1e6])}}),)
    begun = method.begin(training(net, data, "stacked", np.array([1]), stored=stored))
    for name, tensor in model_state(far).items():
        torch.testing.assert_close(begun.online[name][0], tensor)


@pytest.mark.parametrize("threshold", [1e-3, 1e3])
def test_fedu_takes_the_global_predictor_while_it_is_near(threshold: float) -> None:
    method = FedUUpdate(threshold=threshold, **SMALL)
    net, data = extended(method)
    own, target = moved(net, 1), moved(net, 3)
    begun = method.begin(training(net, data, "stacked", np.array([1]), stored=(kept(own, target),)))
    for name, tensor in model_state(net).items():
        mine = "predictor" in name and threshold < mean_distance(net, own)
        torch.testing.assert_close(begun.online[name][0], model_state(own)[name] if mine else tensor)
        torch.testing.assert_close(begun.target[name][0], model_state(target)[name])


# Heads beside a model -------------------------------------------------------------------------------------------------


def test_a_model_with_heads_predicts_as_before() -> None:
    model, data = world()
    method = AveragedByolUpdate(**SMALL)
    whole = extend_model(model, method, data.x[:4], 3, 0, "it")
    assert isinstance(whole, ExtendedModel)
    torch.testing.assert_close(whole(data.x), model(data.x))
    assert whole.trained_form()(data.x).shape == (90, 3 + 2 * 4)
    assert [type(layer) for layer in whole.plain_model()] == [type(layer) for layer in model]
    torch.testing.assert_close(whole.plain_model()(data.x), model(data.x))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(6, 3), nn.Softmax(1)), "computes something behind it"),
        (nn.Sequential(nn.Linear(6, 5), nn.ReLU()), "ends in a dense layer of 3 outputs"),
    ],
)
def test_a_model_without_a_last_dense_layer_is_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        extend_model(model, AveragedByolUpdate(**SMALL), torch.randn(4, 6), 3, 0, "it")


# The probe ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3])
def test_a_probe_is_logistic_regression_on_standardised_features(classes: int) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, 200)
    x = rng.normal(size=(200, 4)) * [1, 5, 0.2, 1] + y[:, None]
    weight, bias = fit_linear_classifier(x, y, classes + 1)
    scaled = (x - x.mean(0)) / x.std(0)
    expected = LogisticRegression(max_iter=1000).fit(scaled, y).predict_proba(scaled)
    powers = np.exp(x @ weight.T + bias)
    np.testing.assert_allclose((powers / powers.sum(1, keepdims=True))[:, :classes], expected, atol=2e-3)


def test_classes_without_samples_are_never_predicted() -> None:
    weight, bias = fit_linear_classifier(np.ones((5, 2)), np.ones(5, np.int64), 3)
    assert (weight == 0).all()
    assert bias.argmax() == 1


def test_scores_are_the_probe_s_and_the_reference_set_is_not_scored_by_itself() -> None:
    """With more features than samples a probe knows its own samples by heart, and nothing of noise."""
    data = blobs(classes=2)
    noise = winnow.data.from_arrays(
        np.random.default_rng(1).normal(size=(400, 60)).astype(np.float32), data.y, name="noise", scale="none"
    )
    ready = prepared("rounds=1", "model.hidden=[80]", dataset=noise, algorithm="fed-byol")
    first, *_ = ready.training.run(ready.federation)
    assert first.metrics["reference"]["accuracy"] < 0.75
    assert first.metrics["test"]["accuracy"] < 0.75


def test_rows_that_the_server_has_labelled_are_what_a_probe_is_fitted_to() -> None:
    ready = prepared("rounds=1", "data.labels={at = 'server', rows = 40}", algorithm="fed-byol")
    scores = [e.metrics for e in ready.training.run(ready.federation) if isinstance(e, RoundFinished)][-1]
    assert scores["test"]["accuracy"] > 0.75
    best, head = ready.training.best, "model.3.weight"
    assert not torch.allclose(best[head], ready.training.model[head]), "the fitted layer stays at the server"
    torch.testing.assert_close(ready.training.model[head], ready.training.initial[head])


def test_the_best_model_predicts_and_is_saved_without_heads(tmp_path: Any) -> None:
    data = blobs()
    result = winnow.run(
        data=data,
        model={"name": "mlp", "hidden": [12]},
        algorithm="fedema",
        client={"hidden": 16, "width": 8},
        rounds=2,
        out=tmp_path / "run",
    )
    found = result.predict(data.x)
    assert (found == data.y).mean() > 0.75
    assert "scores are of a linear probe" in (tmp_path / "run" / "report.html").read_text()
    again = winnow.load(tmp_path / "run")
    assert np.array_equal(again.predict(data.x), found)
    assert [type(layer) for layer in again.model] == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]


def test_a_probe_serves_supervised_methods_too() -> None:
    ready = prepared("rounds=1", "evaluation.probe=linear", algorithm="fedavg")
    first, *_ = ready.training.run(ready.federation)
    assert first.metrics["test"]["accuracy"] > 0.75, "of a model that nobody has trained"


@pytest.mark.parametrize(
    ("settings", "algorithm", "message"),
    [
        ("evaluation.probe=none", "fedema", "trains no last layer"),
        ("reference_clients=[1]", "fedema", "a linear probe needs samples at the server"),
        ("data.local_test=0.2", "fedu", "clients cannot test by it"),
        ("loss=nll", "fed-byol", "one output per class"),
    ],
)
def test_what_a_probe_cannot_do_is_refused(settings: str, algorithm: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment(settings, algorithm=algorithm)
