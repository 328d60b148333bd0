"""Where the first layers stand still, samples go through them once, and nothing else changes."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cohort_training import train
from winnow.core import stream
from winnow.learn.local_optimiser import Sgd
from winnow.learn.stack import (
    LOSSES,
    ExecutionSetting,
    LocalStart,
    TensorData,
    choose_execution,
    model_state,
)

SIZES = (7, 12, 3, 8)
CLIENTS = np.array([2, 0, 3])
EPOCHS = 3
LOCAL = Sgd(epochs=EPOCHS, batch_size=4, learning_rate=0.05, momentum=0.5, weight_decay=0.01)


def make_data(shape: tuple[int, ...]) -> TensorData:
    generator = np.random.default_rng(5)
    count = sum(SIZES)
    return TensorData(
        x=torch.from_numpy(generator.normal(size=(count, *shape)).astype(np.float32)),
        y=torch.from_numpy(generator.integers(0, 3, count)),
        rows=generator.permutation(count),
        offsets=np.cumsum([0, *SIZES]),
    )


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 5), nn.Linear(5, 3))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def noisy() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3))


def by_hand(model: nn.Module, state: dict[str, Tensor], moving: frozenset[str], data: TensorData, client: int) -> dict:
    """One client's training as anyone would write it: only what moves is given to the optimiser."""
    model = copy.deepcopy(model).train()
    model.load_state_dict(state)
    moved = [parameter for name, parameter in model.named_parameters() if name in moving]
    optimiser = torch.optim.SGD(moved, LOCAL.learning_rate, momentum=0.5, weight_decay=0.01)
    generator, own = stream(1, "batches", 1, client), data.rows_of(client)
    for _ in range(EPOCHS):
        order = own[generator.permutation(len(own))]
        for first in range(0, len(order), LOCAL.batch_size):
            rows = order[first : first + LOCAL.batch_size]
            model.zero_grad()
            nn.functional.cross_entropy(model(data.x[rows]), data.y[rows]).backward()
            optimiser.step()
    return model.state_dict()


def start_of(model: nn.Module, moving: frozenset[str], own: frozenset[str]) -> LocalStart:
    """The model for all, but each client has its own of some entries."""
    torch.manual_seed(2)
    states = {
        name: torch.stack([tensor + 0.1 * torch.randn_like(tensor) for _ in CLIENTS]) if name in own else tensor[None]
        for name, tensor in model_state(model).items()
    }
    return LocalStart(states=states, trainable=moving)


def seen_by_first_layer(
    model: nn.Module, shape: tuple[int, ...], force: ExecutionSetting, moving: frozenset[str], own: frozenset[str]
) -> int:
    """How many samples go through the first layer in a training; that must give what a plain loop gives."""
    data, local_start = make_data(shape), start_of(model, moving, own)
    execution = choose_execution(model, *data.first_samples(4), LOSSES["cross-entropy"], force)
    seen: list[int] = []
    execution.module[0].register_forward_hook(lambda layer, given, made: seen.append(len(given[0])))
    trained = train(execution, local_start, LOCAL, data, CLIENTS, round=1, seed=1)
    if not any(isinstance(layer, nn.Dropout) for layer in model):
        for place, client in enumerate(CLIENTS.tolist()):
            begin = {name: tensor[min(place, len(tensor) - 1)] for name, tensor in local_start.states.items()}
            for name, expected in by_hand(model, begin, moving, data, client).items():
                torch.testing.assert_close(trained.states[name][place], expected)
    return sum(seen)


HEADS = {
    dense: ((6,), ("4.weight", "4.bias")),
    convolutional: ((1, 6, 6), ("4.weight", "4.bias", "5.weight", "5.bias")),
}
OWN_SAMPLES = sum(SIZES[k] for k in CLIENTS)


@pytest.mark.parametrize("force", ["loop", "vmap", "stacked", "native"])
@pytest.mark.parametrize("make", HEADS)
def test_samples_go_through_what_stands_still_once(make, force):
    shape, names = HEADS[make]
    head = frozenset(names)
    a_trial = 5  # samples with which the ending's execution is chosen, and the features' shape is found
    assert seen_by_first_layer(make(), shape, force, head, own=head) <= OWN_SAMPLES + a_trial


def test_terms_and_the_optimiser_reach_only_what_moves():
    """Pull and drift of the ending are those of the whole."""
    data, model, head = make_data((6,)), dense(), frozenset({"4.weight", "4.bias"})
    state = model_state(model)
    drift = {name: torch.full_like(tensor, 0.1)[None] for name, tensor in state.items()}
    results = []
    for last_layers_apart in (True, False):
        states = {
            name: tensor[None] if last_layers_apart else torch.stack([tensor] * 3) for name, tensor in state.items()
        }
        anchor = {name: torch.zeros_like(tensor) for name, tensor in states.items()}
        local_start = LocalStart(
            states=states, proximal_weight=0.3, anchor=anchor, gradient_offset=drift, trainable=head
        )
        execution = choose_execution(model, *data.first_samples(4), LOSSES["cross-entropy"], "stacked")
        results.append(train(execution, local_start, LOCAL, data, CLIENTS, round=1, seed=1))
    torch.testing.assert_close(results[0].states, results[1].states)
    torch.testing.assert_close(results[0].loss, results[1].loss)
    assert torch.equal(results[0].steps, results[1].steps)


@pytest.mark.parametrize(
    ("make", "moving", "own"),
    [
        (normalised, ("3.weight", "3.bias"), ()),  # batch statistics
        (noisy, ("2.weight", "2.bias"), ()),  # noise
        (dense, ("4.weight", "4.bias"), ("0.weight",)),  # a beginning of each client's own
        (dense, ("0.weight", "4.bias"), ()),  # the first layer moves
    ],
)
def test_other_models_are_trained_as_a_whole(make, moving, own):
    assert seen_by_first_layer(make(), (6,), "loop", frozenset(moving), frozenset(own)) >= EPOCHS * OWN_SAMPLES


def test_data_that_were_loaded_anew_are_looked_at_anew():
    """What was made of earlier samples must not be taken for what these would give."""
    model, head = dense(), frozenset({"4.weight", "4.bias"})
    local_start = start_of(model, head, head)
    first = make_data((6,))
    second = TensorData(x=first.x.flip(0) * 2, y=first.y.clone(), rows=first.rows, offsets=first.offsets)
    execution = choose_execution(model, *first.first_samples(4), LOSSES["cross-entropy"], "stacked")
    for data in (first, second, first):
        trained = train(execution, local_start, LOCAL, data, CLIENTS, round=1, seed=1)
        for place, client in enumerate(CLIENTS.tolist()):
            begin = {name: tensor[min(place, len(tensor) - 1)] for name, tensor in local_start.states.items()}
            for name, expected in by_hand(model, begin, head, data, client).items():
                torch.testing.assert_close(trained.states[name][place], expected)


@pytest.mark.parametrize("force", ["native", "loop"])
def test_what_a_client_trains_does_not_depend_on_who_else_is_there(force):
    data, model, head = make_data((6,)), dense(), frozenset({"4.weight", "4.bias"})
    execution = choose_execution(model, *data.first_samples(4), LOSSES["cross-entropy"], force)
    local_start = LocalStart(states={name: tensor[None] for name, tensor in model_state(model).items()}, trainable=head)
    together, alone = (
        train(execution, local_start, LOCAL, data, np.array(clients), round=1, seed=1).states
        for clients in ([0, 1, 2, 3], [1])
    )
    assert all(torch.equal(together[name][1], tensor[0]) for name, tensor in alone.items())
