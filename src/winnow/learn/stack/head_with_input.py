"""The last dense layer of a model, with what it reads beside what it computes."""

import torch
from torch import Tensor, nn


class HeadWithInput(nn.Linear):
    """(W·x + b, x) side by side: [n, outputs + features]. So a model's features are in its outputs, and steps of all
    clients at once can use them like any other output.
    """

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([super().forward(x), x], -1)
