"""Steps of a method's own: what they see, what they remember, and what samples count."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cohort_training import train
from winnow.learn.local_optimiser import Sgd
from winnow.learn.sample_draws import SampleDraws, client_keys
from winnow.learn.stack import (
    LOSSES,
    Batch,
    Draw,
    Execution,
    GradientRule,
    LocalStart,
    LocalTraining,
    Loss,
    StepContext,
    TensorData,
    choose_execution,
    mean_loss,
    model_state,
)

CROSS_ENTROPY = LOSSES["cross-entropy"]
WAYS = ("loop", "vmap", "stacked")


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def execution_of(model: nn.Module, way: str) -> Execution:
    x = torch.randn(4, 4).to(next(model.parameters()))
    return choose_execution(model, x, torch.tensor([0, 1, 2, 0]), CROSS_ENTROPY, way)


def data(labels: Sequence[int] = (0, 1, 2)) -> TensorData:
    torch.manual_seed(1)
    return TensorData(
        x=torch.randn(30, 4),
        y=torch.tensor([labels[i % len(labels)] for i in range(30)]),
        rows=np.arange(30),
        offsets=np.array([0, 7, 20, 30]),
    )


@dataclass(frozen=True)
class Watching(GradientRule):
    """Follows the labelled batch, and keeps an average of the parameters and the numbers that it saw."""

    seen: list[tuple[int, list[int], list[list[int]]]]

    @property
    def draws(self) -> Sequence[Draw]:
        return Draw("labelled"), Draw("unlabelled", times=2), Draw("all", replacement=True)

    def __call__(
        self, at: StepContext, parameters: list[Tensor], batches: Sequence[Batch]
    ) -> tuple[list[Tensor], Tensor]:
        self.seen.append((at.step, at.clients.tolist(), [batch.sizes.tolist() for batch in batches]))
        labelled, unlabelled, anything = batches
        assert (labelled.y[labelled.weight.flatten() > 0] >= 0).all()
        assert (unlabelled.y[unlabelled.weight.flatten() > 0] == -1).all()
        assert at.outputs(parameters, anything.x).shape == (anything.weight.numel(), 3)
        gradients, losses = at.gradients(parameters, labelled)
        return gradients, mean_loss(labelled, losses)

    def after(self, at: StepContext, parameters: list[Tensor]) -> None:
        at.memory["average"].lerp_(parameters[0], 0.5)


@pytest.mark.parametrize("way", WAYS)
def test_a_rule_sees_its_draws_and_averages_behind_each_step(way: str) -> None:
    model, some, seen = network("mlp"), data((0, -1, -1, 2)), []
    first = model_state(model)["0.weight"]
    training = LocalTraining(
        execution=execution_of(model, way),
        data=some,
        clients=np.array([0, 2]),
        local=Sgd(epochs=1, batch_size=2, learning_rate=0.5),
        round=1,
        seed=0,
        randomness=None,  # type: ignore[arg-type]
        sent={"model": model_state(model)},
        stored=({}, {}),
    )
    result = training.train(gradient_rule=Watching(seen), memory={"average": first.unsqueeze(0)})
    assert result.steps.tolist() == [2, 3], "client 2 has five labelled rows"
    assert [(step, clients) for step, clients, _ in seen] == [(0, [2, 0]), (1, [2, 0]), (2, [2])]
    assert [sizes for _, _, sizes in seen][2] == [[1], [4], [2]], "unlabelled rows have started again"
    single = training.train(gradient_rule=Watching([]), memory={"average": torch.zeros(1, *first.shape)})
    assert not torch.equal(single.memory["average"], result.memory["average"])
    for client, steps in ((0, 2), (1, 3)):
        share = (single.memory["average"] - result.memory["average"])[client]
        torch.testing.assert_close(share, -first * 0.5**steps)


@pytest.mark.parametrize("kind", ["mlp", "normalised"])
def test_weights_count_in_every_way(kind: str) -> None:
    """Σ weight·loss, whatever the weights; −1 is no loss, and probabilities are targets."""
    model, some = network(kind).double(), data()
    weight = torch.tensor([[0.1, 0.7, 0.4], [2.0, 0.3, 0.0]]).double()
    batch = Batch(some.x[:6].double(), some.y[:6], weight, np.array([3, 2]), full=False)
    soft = torch.softmax(torch.randn(6, 3).double(), 1)
    for targets in (batch.y, torch.tensor([0, -1, 2, -1, 1, 0]), soft):
        found = {way: _gradients(model, way, batch._replace(y=targets)) for way in WAYS}
        expected = _by_autograd(model, batch._replace(y=targets))
        for way in WAYS:
            for one, other in zip(found[way], expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6, msg=way)


def _gradients(model: nn.Module, way: str, batch: Batch) -> list[Tensor]:
    execution = execution_of(model, way)
    states = LocalStart.shared(model_state(model)).stacked(2)
    trained, carried = ([states[name] for name in n] for n in (execution.layout.trained, execution.layout.carried))
    gradients, losses = execution.bind_cohort(trained, carried).gradients(batch)
    return [*gradients, losses[batch.weight > 0]]


def _by_autograd(model: nn.Module, batch: Batch) -> list[Tensor]:
    rows, gradients, losses = {0: slice(0, 3), 1: slice(3, 5)}, [], []
    for client, own in rows.items():
        model.train()
        log_probability = torch.log_softmax(model(batch.x[own]), 1)
        y = batch.y[own]
        one_hot = y if y.is_floating_point() else nn.functional.one_hot(y.clamp_min(0), 3) * (y >= 0).unsqueeze(1)
        loss = -(one_hot * log_probability).sum(1)
        total = (batch.weight[client, : len(loss)] * loss).sum()
        gradients.append(torch.autograd.grad(total, list(model.parameters())))
        losses.append(loss.detach())
    return [*(torch.stack(pair) for pair in zip(*gradients, strict=True)), torch.cat(losses)]


@pytest.mark.parametrize("way", WAYS)
def test_a_rule_may_bring_its_own_loss(way: str) -> None:
    model, some = network("mlp"), data()
    own = Loss("square", lambda outputs, targets: (outputs - targets).square().sum(1))

    class Squares(GradientRule):
        def __call__(
            self, at: StepContext, parameters: list[Tensor], batches: Sequence[Batch]
        ) -> tuple[list[Tensor], Tensor]:
            (batch,) = batches
            gradients, losses = at.gradients(parameters, batch._replace(y=batch.x[:, :3]), own)
            return gradients, mean_loss(batch, losses)

    start, local = LocalStart.shared(model_state(model)), Sgd(epochs=1, batch_size=50, learning_rate=0.1)
    found = train(execution_of(model, way), start, local, some, np.array([1]), round=1, seed=0, gradient_rule=Squares())
    x = some.x[7:20]
    loss = (model(x) - x[:, :3]).square().sum(1).mean()
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(found.loss, loss.detach().unsqueeze(0))
    for (name, before), slope in zip(model_state(model).items(), slopes, strict=True):
        torch.testing.assert_close(found.states[name][0], before - 0.1 * slope, rtol=1e-4, atol=1e-6)


def test_draws_are_a_samples_own() -> None:
    keys = client_keys(3, [4, 9], "weak", 1)
    both, alone = (SampleDraws.of_clients(k, 1000, range(2, 3)) for k in (keys, keys[1:]))
    numbers = both.uniform(2)
    assert torch.equal(numbers[1000:], alone.uniform(2)), "whoever else is there"
    assert not torch.equal(numbers, both.uniform(2))
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert numbers.mean().item() == pytest.approx(0.5, abs=0.02)
    assert both.normal(4).std().item() == pytest.approx(1, abs=0.05)
    assert np.corrcoef(numbers.T.numpy())[0, 1] == pytest.approx(0, abs=0.1)


def test_draws_of_many_steps_are_those_of_each() -> None:
    keys = client_keys(3, [4, 9], "weak", 1)
    together = SampleDraws.of_clients(keys, 5, range(3, 7)).uniform(2).view(4, -1, 2)
    for place, step in enumerate(range(3, 7)):
        assert torch.equal(together[place], SampleDraws.of_clients(keys, 5, range(step, step + 1)).uniform(2))


def test_draws_are_those_of_splitmix64() -> None:
    def mixed(word: int) -> int:
        word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) % 2**64
        word = ((word ^ word >> 27) * 0x94D049BB133111EB) % 2**64
        return word ^ word >> 31

    found = SampleDraws(torch.tensor([-77])).uniform(3)
    expected = [(mixed((-77 + i * 0x9E3779B97F4A7C15) % 2**64) >> 40) / 2**24 for i in (1, 2, 3)]
    assert found.tolist() == [expected]
