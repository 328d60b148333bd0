"""Evaluation of many models at once."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from winnow.learn.models import CnnModel, LstmModel, MlpModel, build_model
from winnow.learn.networks import ResNet18
from winnow.learn.stack import (
    LOSSES,
    Execution,
    ModelState,
    TensorData,
    choose_execution,
    model_state,
    repeat_state,
)

K, B = 3, 4
MODELS = {
    "mlp": (build_model(MlpModel(), (6,), 3, 0), (6,)),
    "cnn": (build_model(CnnModel(), (1, 8, 8), 3, 0), (1, 8, 8)),
    "resnet18": (ResNet18(1, 3, widths=(4, 4, 4, 4)), (1, 8, 8)),
    "lstm": (build_model(LstmModel(hidden=5, layers=2), (6, 2), 3, 0), (6, 2)),
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
@pytest.mark.parametrize("clients", [1, K])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_each_client_s_own_model(name: str, clients: int, force: str) -> None:
    model, shape = MODELS[name]
    states, x = different_states(model), torch.randn(clients, B, *shape)
    states = {name: rows[:clients] for name, rows in states.items()}
    outputs = execution_of(model, shape, force).outputs(states, x)
    for client in range(clients):
        torch.testing.assert_close(outputs[client], plain_model(model, states, client)(x[client]).detach())
    assert not outputs.requires_grad


def test_evaluation_does_not_change_running_statistics() -> None:
    model, shape = MODELS["resnet18"]
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
