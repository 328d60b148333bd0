"""A second network that follows the trained one: a teacher, a target."""

import torch
from torch import Tensor

from winnow.learn.stack import Batch, StepContext


def average_outputs(at: StepContext, batch: Batch, x: Tensor, prefix: str = "") -> Tensor:
    """What the network in `at.memory` gives for the samples of a batch, changed to x; it has an entry for each of the
    model's, whose names may begin with a prefix.
    """
    layout = at.execution.layout
    trained, carried = ([at.memory[f"{prefix}{name}"] for name in names] for names in (layout.trained, layout.carried))
    return at.outputs(trained, x, carried, None if batch.full else batch.weight > 0)


@torch.no_grad()
def move_average(at: StepContext, parameters: list[Tensor], average: float | Tensor) -> None:
    """θ' ← a·θ' + (1 − a)·θ, where a is one for all clients or each one's own, [K]; batch statistics are the trained
    network's.
    """
    for name, tensor in zip(at.execution.layout.trained, parameters, strict=True):
        share = average if isinstance(average, float) else average.view(-1, *[1] * (tensor.dim() - 1))
        at.memory[name].lerp_(tensor, 1 - share)
    for name, tensor in zip(at.execution.layout.carried, at.carried, strict=True):
        at.memory[name].copy_(tensor)
