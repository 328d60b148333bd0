"""Training in CUDA graphs equals a plain loop on the CPU. Skipped where there is no CUDA device."""

import copy

import numpy as np
import pytest
import torch

from winnow.learn.local import Adam, LocalUpdate, Sgd
from winnow.learn.models import ModelSettings, build_model
from winnow.learn.stack import LOSSES, TensorData, choose_execution, model_state, train

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:RNN module weights"),  # torch's own, about speed, in the trial of the LSTM
]

RATE = 2.0**-10
"""Exact in float32, in which a graph keeps it, so that float64 results may be compared closely."""

SIZES = [20, 33, 7, 16, 40]
CASES = {"mlp": (9,), "lenet5": (1, 28, 28), "resnet18": (3, 32, 32), "lstm": (6, 4)}


def ragged(shape: tuple[int, ...], device: str) -> TensorData:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(sum(SIZES), *shape)), rng.integers(0, 10, sum(SIZES))
    offsets = np.concatenate([[0], np.cumsum(SIZES)])
    return TensorData(
        x=torch.from_numpy(x).to(device), y=torch.from_numpy(y).to(device), rows=np.arange(len(x)), offsets=offsets
    )


@pytest.mark.parametrize(
    "local",
    [
        Sgd(epochs=1, batch_size=8, learning_rate=RATE, momentum=0.875, weight_decay=RATE),
        Adam(epochs=1, batch_size=8, learning_rate=RATE),
    ],
    ids=["sgd", "adam"],
)
@pytest.mark.parametrize("name", CASES)
def test_graphs_equal_a_plain_loop(name: str, local: LocalUpdate) -> None:
    plain = build_model(ModelSettings.members[name](), CASES[name], 10, 0).double()
    trained = []
    for device, force in (("cpu", "loop"), ("cuda", "stacked")):
        model, data = copy.deepcopy(plain).to(device), ragged(CASES[name], device)
        execution = choose_execution(model, data.x[:4], data.y[:4], LOSSES["cross-entropy"], force)
        for number in (1, 2):  # the second round replays what the first one captured
            result = train(execution, model_state(model), local, data, np.array([3, 0, 2, 4, 1]), round=number, seed=0)
        trained.append({key: tensor.cpu() for key, tensor in result.states.items()})
    for key, expected in trained[0].items():
        torch.testing.assert_close(trained[1][key], expected, rtol=1e-5, atol=1e-7, msg=f"{name} {key}")
