"""Stacked linear layers, embeddings and learned activations."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from winnow.learn.stack.stacked_layers.base import FoldedShape, StackedLayer, UnstackableError
from winnow.learn.stack.trainable_state import split_clients


class StackedLinear(StackedLayer):
    """x_k W_kᵀ + b_k for all clients in one batched product."""

    weight: Tensor  # [K, out, in]
    bias: Tensor | None  # [K, out]

    def forward(self, x: Tensor) -> Tensor:
        clients, wide, _ = self.weight.shape
        rows = x.reshape(clients, -1, x.shape[-1])
        return batched_linear(rows, self.weight, self.bias).reshape(*x.shape[:-1], wide)


class StackedHeadWithInput(StackedLinear):
    """What it computes, and beside it what it reads."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([super().forward(x), x], -1)


def batched_linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[K, n, in], [K, out, in], [K, out] -> [K, n, out]."""
    if bias is None:
        return torch.bmm(rows, weight.mT)
    return torch.baddbmm(bias.unsqueeze(1), rows, weight.mT)


class StackedEmbedding(StackedLayer):
    """One lookup in the clients' tables laid end to end: client k's identifiers are shifted by k tables."""

    tensors = ("weight",)
    weight: Tensor  # [K, vocabulary, width]

    def __init__(self, plain: nn.Embedding, fold: FoldedShape) -> None:
        super().__init__(plain, fold)
        if plain.max_norm is not None or plain.sparse or plain.scale_grad_by_freq:
            raise UnstackableError(
                "there is no stacked version of an embedding with max_norm, sparse or scale_grad_by_freq"
            )
        self.padding = plain.padding_idx

    def forward(self, tokens: Tensor) -> Tensor:
        clients, vocabulary, _ = self.weight.shape
        shift = torch.arange(clients, device=tokens.device).mul_(vocabulary)
        shifted = (tokens.reshape(clients, -1) + shift.unsqueeze(1)).view(tokens.shape)
        rows = functional.embedding(shifted, self.weight.flatten(0, 1))
        if self.padding is None:
            return rows
        return torch.where((tokens == self.padding).unsqueeze(-1), rows.detach(), rows)


class StackedPRelu(StackedLayer):
    """A leaky rectifier whose slope each client learns."""

    tensors = ("weight",)
    weight: Tensor  # [K, 1 or channels]

    def forward(self, x: Tensor) -> Tensor:
        clients = len(self.weight)
        slope = self.weight.view(clients, 1, -1, *[1] * (x.dim() - 2))
        rows = split_clients(x, clients)
        return torch.where(rows >= 0, rows, rows * slope).flatten(0, 1)
