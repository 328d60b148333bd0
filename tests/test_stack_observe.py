"""Evaluation of many models at once, and what a layer puts out on the way."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from winnow.core import ModelError
from winnow.learn.models import Cnn, Lstm, Mlp, build_model
from winnow.learn.networks import ResNet18
from winnow.learn.stack import (
    LOSSES,
    Execution,
    ModelState,
    TensorData,
    choose_execution,
    forward,
    model_state,
    repeat_state,
)

K, B = 3, 4
MODELS = {
    "mlp": (build_model(Mlp(), (6,), 3, 0), (6,), "1"),
    "cnn": (build_model(Cnn(), (1, 8, 8), 3, 0), (1, 8, 8), "conv2"),
    "residual block": (ResNet18(1, 3, widths=(4, 4, 4, 4)), (1, 8, 8), "stages.1.0"),
    "stem": (ResNet18(1, 3, widths=(4, 4, 4, 4)), (1, 8, 8), "norm"),
}


def execution_of(model: nn.Module, shape: tuple[int, ...], force: str) -> Execution:
    torch.manual_seed(0)
    return choose_execution(
        model, torch.randn(4, *shape), torch.zeros(4, dtype=torch.int64), LOSSES["cross-entropy"], force
    )


def different_states(model: nn.Module) -> ModelState:
    torch.manual_seed(1)
    states = repeat_state(model_state(model), K)
    return {
        name: rows * (1 + torch.rand(rows.shape)) if rows.is_floating_point() else rows for name, rows in states.items()
    }


def plain_model(model: nn.Module, states: ModelState, client: int) -> nn.Module:
    own = copy.deepcopy(model).eval()
    own.load_state_dict({name: rows[client] for name, rows in states.items()})
    return own


@pytest.mark.parametrize("force", ["stacked", "vmap", "loop"])
@pytest.mark.parametrize("name", MODELS)
def test_observing_a_layer_gives_what_a_hook_on_the_plain_model_sees(name: str, force: str) -> None:
    model, shape, layer = MODELS[name]
    states, x = different_states(model), torch.randn(K, B, *shape)
    outputs, captured = execution_of(model, shape, force).observe(states, x, None, layer)
    for client in range(K):
        seen: list[Tensor] = []
        own = plain_model(model, states, client)
        own.get_submodule(layer).register_forward_hook(lambda _layer, _inputs, output, seen=seen: seen.append(output))
        torch.testing.assert_close(outputs[client], own(x[client]).detach())
        torch.testing.assert_close(captured[client], seen[0].detach())
    assert not captured.requires_grad


@pytest.mark.parametrize("force", ["stacked", "loop"])
@pytest.mark.parametrize("clients", [1, K])
def test_a_recurrent_layer_gives_its_last_hidden_state(force: str, clients: int) -> None:
    model = build_model(Lstm(hidden=5, layers=2), (6, 2), 3, 0)
    states, x = different_states(model), torch.randn(clients, B, 6, 2)
    states = {name: rows[:clients] for name, rows in states.items()}
    _, captured = execution_of(model, (6, 2), force).observe(states, x, None, "lstm")
    for client in range(clients):
        _, (hidden, _) = plain_model(model, states, client).lstm(x[client])
        torch.testing.assert_close(captured[client], hidden[-1].detach())


def test_an_unknown_layer_is_named_with_the_known_ones() -> None:
    model, shape, _ = MODELS["cnn"]
    execution = execution_of(model, shape, "auto")
    with pytest.raises(ModelError, match="no layer 'conv9'; choose one of conv1, conv2, fc1, fc2"):
        execution.observe(different_states(model), torch.randn(K, B, *shape), None, "conv9")


@pytest.mark.parametrize("force", ["stacked", "loop"])
def test_forward_evaluates_one_model_or_many_in_batches(force: str) -> None:
    model, shape, _ = MODELS["stem"]
    execution, states, x = execution_of(model, shape, force), different_states(model), torch.randn(7, *shape)
    many = torch.cat(list(forward(execution, states, x, batch_size=3)), 1)
    for client in range(K):
        one = torch.cat(list(forward(execution, {n: r[client] for n, r in states.items()}, x, batch_size=3)))
        expected = plain_model(model, states, client)(x).detach()
        torch.testing.assert_close(one, expected)
        torch.testing.assert_close(many[client], expected)


def test_evaluation_does_not_change_running_statistics() -> None:
    model, shape, _ = MODELS["stem"]
    states = different_states(model)
    before = {name: rows.clone() for name, rows in states.items()}
    execution_of(model, shape, "stacked").outputs(states, torch.randn(K, B, *shape))
    assert all(torch.equal(states[name], rows) for name, rows in before.items())


def test_arrays_become_tensors_of_the_kinds_that_torch_takes() -> None:
    class Arrays:
        x = np.arange(6, dtype=np.float64).reshape(3, 2)
        y = np.array([1, 0, 2], np.uint8)
        rows = np.array([2, 0, 1])
        offsets = np.array([0, 1, 3])

    data = TensorData.from_client_data(Arrays())
    assert (data.x.dtype, data.y.dtype) == (torch.float32, torch.int64)
    assert data.x.tolist() == Arrays.x.tolist()
    assert data.sizes(np.array([1, 0])).tolist() == [2, 1]
