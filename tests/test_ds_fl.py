"""DS-FL: predictions instead of models, averaged, sharpened and distilled, against the rule written out."""

from copy import deepcopy
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional

from few_label_clients import CLIENTS, LOCAL, WAYS, epochs_of, training, world
from winnow.core import UNTIL_ALL, ConfigError, ModelError, RoundFinished, stream
from winnow.learn import teacher
from winnow.learn.algorithms.ds_fl import OWN, ROUND, TARGETS, DistillingServer, PredictionUpdate
from winnow.learn.client_round_method import PREDICTIONS
from winnow.learn.reply_checks import check_replies
from winnow.learn.server_optimiser import RoundAggregate
from winnow.learn.stack import TensorData, model_state
from world import experiment, prepared


def known_rows(data: TensorData) -> TensorData:
    """As clients of a method that learns from labels alone have them; the third has none left but one."""
    rows = [data.rows_of(client)[data.labelled[data.rows_of(client)]] for client in (0, 1)] + [np.array([0])]
    return TensorData(x=data.x, y=data.y, rows=np.concatenate(rows), offsets=np.cumsum([0, *map(len, rows)]))


def steps_by_hand(net: nn.Module, x: Tensor, y: Tensor, batches: list[np.ndarray]) -> None:
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    for rows in batches:
        optimiser.zero_grad()
        functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimiser.step()


@pytest.mark.parametrize("way", WAYS)
def test_a_client_learns_the_targets_then_its_labels_and_tells_probabilities(way: str) -> None:
    model, data = world()
    data, shown = known_rows(data), torch.randn(20, 6)
    targets = torch.rand(20, 3).softmax(1)
    other = deepcopy(model)
    nn.init.normal_(other[0].weight)
    kept = ({OWN: model_state(other)}, {}, {})
    sent = {"model": model_state(model), TARGETS: {TARGETS: targets, ROUND: torch.tensor(1)}}
    result = PredictionUpdate(epochs=3).update(training(model, data, way, open=shown, sent=sent, stored=kept))
    assert not result.model
    for place, client in enumerate(CLIENTS.tolist()):
        net = deepcopy(other if place == 0 else model)
        steps_by_hand(net, shown, targets, epochs_of(np.arange(20), 8, 9, client, "phase -3"))
        own = data.rows_of(client)
        steps_by_hand(net, data.x, data.y, epochs_of(own, 8, LOCAL.epochs * -(-len(own) // 8), client))
        with torch.no_grad():
            expected = net(shown).softmax(1)
        torch.testing.assert_close(result.parts[PREDICTIONS][PREDICTIONS][place], expected, rtol=1e-4, atol=1e-5)
        for name, tensor in net.state_dict().items():
            torch.testing.assert_close(result.keep[OWN][name][place], tensor, rtol=1e-4, atol=1e-5)


def test_the_server_sharpens_the_mean() -> None:
    mean = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    seen: list[Any] = []

    def distil(model: Any, targets: Tensor, *, epochs: int) -> Any:
        seen.append((targets, epochs))
        return model

    aggregate = RoundAggregate(
        model={},
        clients=2,
        population=3,
        trained_names=(),
        parts={PREDICTIONS: {PREDICTIONS: mean}},
        distil=distil,
        round=7,
    )
    server = DistillingServer(temperature=0.1, epochs=4)
    state, _ = server.step({}, {}, aggregate)
    raised = np.exp(mean.numpy() / 0.1)
    np.testing.assert_allclose(seen[0][0].numpy(), raised / raised.sum(1, keepdims=True), rtol=1e-5)
    assert seen[0][1] == 4
    assert torch.equal(server.broadcast(state)[TARGETS][TARGETS], seen[0][0])
    assert int(server.broadcast(state)[TARGETS][ROUND]) == 7
    assert server.broadcast({}) == {}


def test_every_round_is_about_other_open_samples_and_targets_are_learnt_on_those_they_are_of() -> None:
    model, data = world()
    data, shown, client = known_rows(data), torch.randn(20, 6), np.array([1])
    about = {each: np.sort(stream(5, "open samples", each).permutation(20)[:8]) for each in (1, 2)}
    assert about[1].tolist() != about[2].tolist()
    targets = torch.rand(8, 3).softmax(1)
    sent = {"model": model_state(model), TARGETS: {TARGETS: targets, ROUND: torch.tensor(1)}}
    result = PredictionUpdate(rows=8).update(training(model, data, "stacked", client, open=shown, sent=sent))
    net, own = deepcopy(model), data.rows_of(1)
    steps_by_hand(net, shown[about[1]], targets, epochs_of(np.arange(8), 8, 1, 1, "phase -3"))
    steps_by_hand(net, data.x, data.y, epochs_of(own, 8, LOCAL.epochs * -(-len(own) // 8), 1))
    with torch.no_grad():
        expected = net(shown[about[2]]).softmax(1)
    torch.testing.assert_close(result.parts[PREDICTIONS][PREDICTIONS][0], expected, rtol=1e-4, atol=1e-5)


def test_the_server_learns_targets_on_the_samples_that_clients_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = prepared("rounds=2", "data.open=37", "client.rows=10", algorithm="ds-fl")
    ds_fl = import_module("winnow.learn.algorithms.ds_fl")  # the package has the recipe by this name
    predict, distil, told, learnt = ds_fl.predictions, teacher.distilled, [], []

    def predictions(at: Any, states: Any, shown: Tensor) -> Tensor:
        told.append(shown)
        return predict(at, states, shown)

    def distilled(at: Any, start: Any, shown: Tensor, *others: Any) -> Any:
        learnt.append(shown)
        return distil(at, start, shown, *others)

    monkeypatch.setattr(ds_fl, "predictions", predictions)
    monkeypatch.setattr(teacher, "distilled", distilled)
    rounds = [each for each in ready.training.run(ready.federation) if isinstance(each, RoundFinished)]
    assert [each.cost.sent_bytes / len(each.aggregated) for each in rounds] == [4 * 10 * 3] * 2
    assert len(learnt) == 2
    assert not torch.equal(*learnt)
    assert all(any(torch.equal(shown, each) for each in learnt) for shown in told)
    assert torch.equal(told[0], learnt[0])


def test_replies_weigh_four_bytes_a_class_and_open_sample_and_carry_no_model() -> None:
    ready = prepared("rounds=2", "data.open=37", algorithm="ds-fl")
    rounds = [event for event in ready.training.run(ready.federation) if isinstance(event, RoundFinished)]
    assert [event.cost.sent_bytes / len(event.aggregated) for event in rounds] == [4 * 37 * 3] * 2
    tasks = ready.training.tasks([0, 1], ready.simulation.population.sizes)
    with ready.federation.dispatch(tasks, UNTIL_ALL) as exchange:
        replies = list(exchange)
    for reply in replies:
        assert list(reply.payload) == [PREDICTIONS]
        assert sum(tensor.nbytes for part in reply.payload.values() for tensor in part.values()) == 4 * 37 * 3


LIES = {
    "too few rows": lambda told: told[:-1],
    "a label for every sample": torch.ones_like,
    "one larger than one": lambda told: told + torch.tensor([1.0, -1.0, 0.0]),
    "not a number": lambda told: told * torch.nan,
    "a huge one": lambda told: told * 1e30,
    "other numbers": lambda told: told.double(),
}


@pytest.mark.parametrize("lie", LIES)
def test_predictions_that_are_no_probabilities_are_refused(lie: str) -> None:
    ready = prepared("rounds=1", algorithm="ds-fl")
    list(ready.training.run(ready.federation))
    tasks = ready.training.tasks([0, 1], ready.simulation.population.sizes)
    with ready.federation.dispatch(tasks, UNTIL_ALL) as exchange:
        honest, liar = sorted(exchange, key=lambda reply: reply.task.client)
    told = liar.payload[PREDICTIONS][PREDICTIONS]
    lying = replace(liar, payload={PREDICTIONS: {PREDICTIONS: LIES[lie](told)}})
    sound, refused, _ = check_replies([honest, lying], ready.training.expected)
    assert [reply.task.client for reply in sound] == [0]
    assert [each.client for each in refused] == [1]
    extra = replace(liar, payload={**liar.payload, "model": ready.training.model})
    (rejection,) = check_replies([extra], ready.training.expected).refused
    assert rejection.reason == "the reply has an unexpected part 'model'"


@pytest.mark.parametrize("wrong", [torch.ones(20, 3), torch.full((20, 2), 0.5), torch.full((19, 3), 1 / 3)])
def test_a_client_refuses_targets_that_are_no_probabilities(wrong: Tensor) -> None:
    model, data = world()
    sent = {"model": model_state(model), TARGETS: {TARGETS: wrong, ROUND: torch.tensor(1)}}
    with pytest.raises(ModelError, match="the server's targets are not probabilities of 3 classes for 20 open samples"):
        PredictionUpdate().update(training(model, known_rows(data), "loop", open=torch.randn(20, 6), sent=sent))


@pytest.mark.parametrize("told", [{}, {ROUND: torch.tensor(3)}, {ROUND: torch.tensor(0)}, {ROUND: torch.ones(2)}])
def test_a_client_refuses_targets_of_no_round_so_far(told: dict[str, Tensor]) -> None:
    model, data = world()
    sent = {"model": model_state(model), TARGETS: {TARGETS: torch.full((20, 3), 1 / 3), **told}}
    with pytest.raises(ModelError, match="of which round so far"):
        PredictionUpdate().update(training(model, known_rows(data), "loop", open=torch.randn(20, 6), sent=sent))


def test_what_it_cannot_do_without_is_said() -> None:
    with pytest.raises(ConfigError, match=r"sends predictions for open samples, and there are none; set data\.open"):
        prepared("data.open=0", algorithm="ds-fl")
    with pytest.raises(ConfigError, match=r"requires collect\.name = 'plain'; it is 'secure'"):
        experiment("collect.name=secure", algorithm="ds-fl")
    with pytest.raises(ConfigError, match=r"filters change models, and client\.name = 'predictions' sends none"):
        experiment("filters=[{name = 'compress', quantise = 'min-max'}]", algorithm="ds-fl")
