"""Cohort training equals a plain loop written with `torch.optim`, whatever the execution, model and optimiser."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cohort_training import train
from winnow.core import stream
from winnow.learn.local_optimiser import Adam, LocalOptimiser, Sgd
from winnow.learn.models import (
    CnnModel,
    LeNet5Model,
    LstmModel,
    MlpModel,
    ModelSettings,
    ShuffleNetV2Model,
    build_model,
)
from winnow.learn.networks import ResNet18
from winnow.learn.stack import LOSSES, LocalStart, TensorData, choose_execution, model_state

SIZES = (7, 12, 3, 8, 5)
CLASSES = 4
CROSS_ENTROPY = LOSSES["cross-entropy"]
MOMENTUM = Sgd(epochs=2, batch_size=4, learning_rate=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)


def make_data(shape: tuple[int, ...], sizes: tuple[int, ...] = SIZES, *, tokens: int | None = None) -> TensorData:
    """Clients hold scattered rows of one flat data set, in double precision so that only real differences show."""
    generator = np.random.default_rng(5)
    count = sum(sizes)
    x = (
        generator.normal(size=(count + 3, *shape))
        if tokens is None
        else generator.integers(0, tokens, (count + 3, *shape))
    )
    y = generator.integers(0, CLASSES, count + 3)
    return TensorData(
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        rows=generator.permutation(count + 3)[:count],
        offsets=np.cumsum([0, *sizes]),
    )


def make_model(settings: ModelSettings, shape: tuple[int, ...]) -> nn.Module:
    return build_model(settings, shape, CLASSES, seed=3).double()


def plain_optimiser(local: LocalOptimiser, model: nn.Module, round: int) -> torch.optim.Optimizer:
    rate = local.learning_rate * local.decay ** (round - 1)
    if isinstance(local, Sgd):
        return torch.optim.SGD(
            model.parameters(), rate, momentum=local.momentum, nesterov=local.nesterov, weight_decay=local.weight_decay
        )
    assert isinstance(local, Adam)
    betas = (local.beta1, local.beta2)
    return torch.optim.Adam(model.parameters(), rate, betas=betas, eps=local.epsilon, weight_decay=local.weight_decay)


def plain_training(
    model: nn.Module,
    data: TensorData,
    client: int,
    local: LocalOptimiser,
    *,
    round: int = 1,
    seed: int = 1,
    loss: Callable[..., Tensor] = nn.functional.cross_entropy,
    skip_single: bool = False,
) -> dict[str, Tensor]:
    """One client's round as anyone would write it."""
    model = copy.deepcopy(model).train()
    optimiser = plain_optimiser(local, model, round)
    held = data.rows[data.offsets[client] : data.offsets[client + 1]]
    generator = stream(seed, "batches", round, client)
    steps = 0
    for _ in range(local.epochs or 10_000):
        order = held[generator.permutation(len(held))]
        for first in range(0, len(order), local.batch_size):
            batch = order[first : first + local.batch_size]
            if steps == local.steps or (skip_single and len(batch) == 1):
                continue
            optimiser.zero_grad()
            loss(model(data.x[batch]), data.y[batch]).backward()
            optimiser.step()
            steps += 1
        if steps == local.steps:
            break
    return model_state(model)


def assert_same_as_plain(
    model: nn.Module, data: TensorData, local: LocalOptimiser, force: str, clients: tuple[int, ...], **plain: object
) -> None:
    execution = choose_execution(model, data.x, data.y, CROSS_ENTROPY, force)
    assert execution.name == force
    trained = train(execution, LocalStart.shared(model_state(model)), local, data, np.array(clients), round=1, seed=1)
    for place, client in enumerate(clients):
        expected = plain_training(model, data, client, local, **plain)
        assert list(trained.states) == list(expected)
        for name, tensor in expected.items():
            torch.testing.assert_close(
                trained.states[name][place], tensor, rtol=1e-6, atol=1e-8, msg=f"{client} {name}"
            )


MODELS = {
    "mlp": (lambda: make_model(MlpModel(hidden=(8, 6)), (5,)), (5,)),
    "lenet5": (lambda: make_model(LeNet5Model(), (1, 28, 28)), (1, 28, 28)),
    "cnn": (lambda: make_model(CnnModel(), (1, 8, 8)), (1, 8, 8)),
    "resnet18": (lambda: ResNet18(3, CLASSES, widths=(4, 6, 8, 10)).double(), (3, 16, 16)),
    "shufflenet-v2": (lambda: make_model(ShuffleNetV2Model(width=0.5), (3, 16, 16)), (3, 16, 16)),
    "lstm": (lambda: make_model(LstmModel(hidden=6, layers=2), (5, 3)), (5, 3)),
}


SLOW = {"shufflenet-v2"}


@pytest.mark.parametrize("force", ["stacked", "vmap", "loop"])
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow(part="executions")] * (each in SLOW)) for each in MODELS]
)
def test_every_execution_equals_a_plain_loop(name: str, force: str) -> None:
    build, shape = MODELS[name]
    normalised = name in ("resnet18", "shufflenet-v2")
    # Fifty normalisations of three samples magnify the last bit beyond recognition unless the steps are small.
    local = MOMENTUM.model_copy(update={"learning_rate": 0.001}) if normalised else MOMENTUM
    assert_same_as_plain(build(), make_data(shape), local, force, (2, 0, 3, 1, 4), skip_single=normalised)


@pytest.mark.parametrize("force", ["stacked", "vmap"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm"])
def test_adam_equals_torchs(name: str, force: str) -> None:
    build, shape = MODELS[name]
    local = Adam(epochs=2, batch_size=4, learning_rate=0.01, beta1=0.8, beta2=0.95, epsilon=1e-6, weight_decay=0.1)
    assert_same_as_plain(build(), make_data(shape), local, force, (1, 2, 0))


@pytest.mark.parametrize("local", [Sgd(steps=5, batch_size=4, learning_rate=0.1), Adam(steps=3, batch_size=50)])
def test_steps_run_on_through_epochs_of_any_length(local: LocalOptimiser) -> None:
    build, shape = MODELS["mlp"]
    assert_same_as_plain(build(), make_data(shape), local, "stacked", (0, 1, 2, 3))


def test_token_models_train_stacked() -> None:
    data = make_data((6,), tokens=9)
    assert_same_as_plain(make_model(LstmModel(hidden=5, vocabulary=9), (6,)), data, MOMENTUM, "stacked", (0, 1, 2))


class Everything(nn.Module):
    """The layers that the named models do not use."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 6, padding_idx=0)
        self.conv = nn.Conv1d(6, 6, 3, padding="same", padding_mode="circular", groups=2)
        self.group = nn.GroupNorm(2, 6)
        self.prelu = nn.PReLU(6)
        self.up = nn.ConvTranspose1d(6, 4, 2, stride=2, output_padding=1)
        self.instance = nn.InstanceNorm1d(4, affine=True)
        self.gru = nn.GRU(4, 5, bidirectional=True)
        self.layer = nn.LayerNorm((10,))
        self.rnn = nn.RNN(10, 3, batch_first=True, nonlinearity="relu", bias=False)
        self.norm = nn.BatchNorm1d(3, momentum=None)
        self.head = nn.Linear(3, CLASSES, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.prelu(self.group(self.conv(self.embedding(tokens).transpose(1, 2))))
        x = self.instance(self.up(x)).permute(2, 0, 1)
        x = self.layer(self.gru(x)[0].transpose(0, 1))
        series, _ = self.rnn(x, torch.ones(1, len(x), 3, dtype=x.dtype))
        return self.head(self.norm(series.transpose(1, 2)).mean(2))


def test_every_stacked_layer_equals_its_plain_one() -> None:
    torch.manual_seed(0)
    data = make_data((6,), tokens=9)
    assert_same_as_plain(Everything().double(), data, MOMENTUM, "stacked", (0, 1, 2, 3, 4), skip_single=True)


def test_frozen_parameters_stay_and_shared_ones_stay_shared() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, CLASSES)
            self.second.weight = self.first.weight
            self.head.bias.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))

    torch.manual_seed(0)
    model = Tied().double()
    assert_same_as_plain(model, make_data((5,)), MOMENTUM, "vmap", (0, 1))
    assert choose_execution(model, *samples((5,)), CROSS_ENTROPY).notice.startswith("training clients with vmap")


def samples(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    data = make_data(shape)
    return data.x, data.y


@pytest.mark.parametrize("force", ["stacked", "vmap", "loop"])
def test_batch_normalisation_skips_single_samples(force: str) -> None:
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES)).double()
    data = make_data((5,), sizes=(5, 1, 4, 0))
    assert_same_as_plain(
        model, data, Sgd(epochs=2, batch_size=4, learning_rate=0.1), force, (0, 1, 2), skip_single=True
    )
    execution = choose_execution(model, data.x, data.y, CROSS_ENTROPY, force)
    trained = train(
        execution, LocalStart.shared(model_state(model)), MOMENTUM, data, np.array([0, 1, 3]), round=1, seed=1
    )
    for name, tensor in model_state(model).items():
        assert torch.equal(trained.states[name][1], tensor)
        assert torch.equal(trained.states[name][2], tensor)
    assert trained.loss.isnan().tolist() == [False, True, True]


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    batch_size=st.integers(1, 10),
    length=st.sampled_from([{"epochs": 1}, {"epochs": 3}, {"steps": 4}]),
)
def test_any_ragged_cohort_equals_clients_on_their_own(
    sizes: list[int], batch_size: int, length: dict[str, int]
) -> None:
    build, shape = MODELS["mlp"]
    model, data = build(), make_data(shape, tuple(sizes))
    local = Sgd(batch_size=batch_size, learning_rate=0.1, momentum=0.5, **length)
    execution = choose_execution(model, data.x, data.y, CROSS_ENTROPY)
    together = train(
        execution, LocalStart.shared(model_state(model)), local, data, np.arange(len(sizes)), round=2, seed=9
    )
    for client, size in enumerate(sizes):
        alone = train(
            execution, LocalStart.shared(model_state(model)), local, data, np.array([client]), round=2, seed=9
        )
        torch.testing.assert_close(together.loss[client], alone.loss[0], equal_nan=True)
        expected = plain_training(model, data, client, local, round=2, seed=9) if size else model_state(model)
        for name, tensor in alone.states.items():
            torch.testing.assert_close(together.states[name][client], tensor[0])
            torch.testing.assert_close(tensor[0], expected[name])


def test_the_loss_is_the_mean_over_the_last_epochs_samples() -> None:
    build, shape = MODELS["mlp"]
    model, data = build(), make_data(shape)
    local = Sgd(epochs=1, batch_size=100, learning_rate=0.1)
    execution = choose_execution(model, data.x, data.y, CROSS_ENTROPY)
    trained = train(execution, LocalStart.shared(model_state(model)), local, data, np.array([1, 2]), round=1, seed=1)
    for place, client in enumerate((1, 2)):
        held = data.rows[data.offsets[client] : data.offsets[client + 1]]
        expected = nn.functional.cross_entropy(model(data.x[held]), data.y[held])
        torch.testing.assert_close(trained.loss[place], expected.detach())


def test_learning_rate_decays_by_round() -> None:
    build, shape = MODELS["mlp"]
    model, data = build(), make_data(shape)
    local = Sgd(batch_size=4, learning_rate=0.1, decay=0.5)
    execution = choose_execution(model, data.x, data.y, CROSS_ENTROPY)
    trained = train(execution, LocalStart.shared(model_state(model)), local, data, np.array([0]), round=3, seed=1)
    for name, tensor in plain_training(model, data, 0, local, round=3).items():
        torch.testing.assert_close(trained.states[name][0], tensor)


def test_a_polluted_client_spoils_nobody_else() -> None:
    build, shape = MODELS["mlp"]
    model, data = build(), make_data(shape)
    data.x[data.rows[data.offsets[1] : data.offsets[2]]] = torch.nan
    execution = choose_execution(model, data.x, data.y, CROSS_ENTROPY)
    trained = train(
        execution, LocalStart.shared(model_state(model)), MOMENTUM, data, np.array([0, 1, 2]), round=1, seed=1
    )
    finite = trained.states["1.weight"].flatten(1).isfinite().all(1)
    assert finite.tolist() == [True, False, True]


@pytest.mark.parametrize("force", ["stacked", "vmap", "loop"])
def test_training_repeats_bit_for_bit_and_leaves_torchs_generator_alone(force: str) -> None:
    model = nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.5), nn.Linear(16, CLASSES)).double()
    data = make_data((5,))
    execution = choose_execution(model, data.x, data.y, CROSS_ENTROPY, force)
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    runs = [
        train(
            execution, LocalStart.shared(model_state(model)), MOMENTUM, data, np.array([3, 0, 1]), round=number, seed=1
        )
        for number in (0, 0, 1)
    ]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(runs[0].states[name], runs[1].states[name]) for name in runs[0].states)
    assert not torch.equal(runs[0].states["0.weight"], runs[2].states["0.weight"])
