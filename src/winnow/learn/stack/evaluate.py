"""Outputs of finished models."""

from collections.abc import Iterator

import torch
from torch import Tensor

from winnow.learn.stack.execution import Execution
from winnow.learn.stack.state import ModelState


def forward(execution: Execution, states: ModelState, x: Tensor, *, batch_size: int = 1024) -> Iterator[Tensor]:
    """Outputs in evaluation mode, batch by batch: [b, ...] of one model, or [K, b, ...] of K stacked ones."""
    plain = execution.module.state_dict()
    name = execution.layout.names[0]
    single = states[name].dim() == plain[name].dim()
    stacked = {key: tensor.unsqueeze(0) for key, tensor in states.items()} if single else states
    clients = len(stacked[name])
    for batch in torch.split(x, batch_size):
        outputs = execution.outputs(stacked, batch.expand(clients, *batch.shape))
        yield outputs[0] if single else outputs
