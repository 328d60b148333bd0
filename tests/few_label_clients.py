"""Three small clients with few labels, and what their batches and changed samples are, for methods written out."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from winnow.core import stream
from winnow.learn.client_round_method import LocalResult
from winnow.learn.local_optimiser import Sgd
from winnow.learn.sample_draws import SampleDraws, client_keys
from winnow.learn.stack import LOSSES, LocalTraining, TensorData, choose_execution, model_state

LOCAL = Sgd(epochs=2, batch_size=8, learning_rate=0.1, momentum=0.5)
CLIENTS = np.array([2, 0, 1])
WAYS = ("loop", "vmap", "stacked")
MOST_WAYS_SLOW = [pytest.param(way, marks=[pytest.mark.slow(part="executions")] * (way != "stacked")) for way in WAYS]
"""The same; in the fast suite the conformance of all algorithms compares executions anyway."""


def small_network(images: bool) -> nn.Module:
    if not images:
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 3))


def world(*, images: bool = False) -> tuple[nn.Module, TensorData]:
    """Three clients: a third of the rows of two have labels, and none of the third's."""
    torch.manual_seed(3)
    x = torch.randn(90, 1, 8, 8) if images else torch.randn(90, 6)
    y = x.flatten(1)[:, :3].argmax(1)
    y[torch.arange(90) % 3 != 0] = -1
    y[60:] = -1
    return small_network(images), TensorData(x=x, y=y, rows=np.arange(90), offsets=np.array([0, 25, 60, 90]))


def training(model: nn.Module, data: TensorData, way: str, clients: Any = CLIENTS, **other: Any) -> LocalTraining:
    execution = choose_execution(model, data.x[:4], torch.zeros(4).long(), LOSSES["cross-entropy"], way, own_steps="it")
    told: dict[str, Any] = {
        "execution": execution,
        "data": data,
        "clients": clients,
        "local": LOCAL,
        "round": 2,
        "seed": 5,
        "randomness": stream,
        "sent": {"model": model_state(model)},
        "stored": ({},) * len(clients),
    }
    return LocalTraining(**told | other)


def epochs_of(rows: np.ndarray, batch: int, steps: int, *names: Any) -> list[np.ndarray]:
    """Batches of reshuffled epochs until there are enough."""
    if not len(rows):
        return [rows] * steps
    order, batches = stream(5, "batches", 2, *names), []
    while len(batches) < steps:
        shuffled = rows[order.permutation(len(rows))]
        batches += [shuffled[first : first + batch] for first in range(0, len(rows), batch)]
    return batches[:steps]


def changed(how: Any, purpose: str, x: Tensor, client: int, step: int, width: int) -> Tensor:
    """As for a whole batch of this width, whose padding changes nothing."""
    keys = client_keys(5, [client], purpose, 2)
    filled = torch.cat([x, x[:1].expand(width - len(x), *x.shape[1:])])
    return how(filled, SampleDraws.of_clients(keys, width, range(step, step + 1)))[: len(x)]


def assert_cohort(result: LocalResult, by_hand: list[dict[str, Tensor]]) -> None:
    for place, expected in enumerate(by_hand):
        for name, tensor in expected.items():
            torch.testing.assert_close(result.model[name][place], tensor, rtol=1e-4, atol=1e-5)
