"""Local training of one client written as a textbook would, to check methods against."""

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn

from winnow.core import stream
from winnow.experiment.build_simulation import PreparedRun

State = dict[str, Tensor]
Term = Callable[[str, Tensor], Tensor]
"""What is added to the gradient of a named parameter, given its present value."""


def samples(ready: PreparedRun, client: int) -> tuple[Tensor, Tensor]:
    data = ready.federation.site.data
    rows = data.rows_of(client)
    return data.x[rows], data.y[rows]


def train_client(ready: PreparedRun, client: int, number: int, start: State, term: Term | None = None) -> State:
    """The small world's two epochs of SGD with batches of 8, from a start, in round `number`."""
    local = ready.experiment.local
    module, (x, y) = deepcopy(ready.module), samples(ready, client)
    module.load_state_dict(start)
    module.train()
    optimiser = torch.optim.SGD(module.parameters(), lr=local.rate(number), momentum=local.momentum)
    order = stream(ready.experiment.seed, "batches", number, client)
    for _ in range(2):
        for batch in np.array_split(rows := order.permutation(len(x)), range(8, len(rows), 8)):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
            if term is not None:
                for name, parameter in module.named_parameters():
                    parameter.grad += term(name, parameter.detach())
            optimiser.step()
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def steps(ready: PreparedRun, client: int) -> int:
    return 2 * -(-len(samples(ready, client)[0]) // 8)


def mean(states: list[State]) -> State:
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def assert_same(one: State, other: State) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-4, atol=1e-5, msg=name)
