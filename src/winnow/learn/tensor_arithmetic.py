"""Arithmetic on named tensors. Leading dimensions of clients broadcast, as in torch."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from winnow.learn.stack import ModelState

NamedTensors = Mapping[str, Tensor]


def combine(function: Callable[..., Tensor], *trees: NamedTensors) -> ModelState:
    """The function of the tensors of each name that the first tree has."""
    return {name: function(*(tree[name] for tree in trees)) for name in trees[0]}


def plus(one: NamedTensors, other: NamedTensors, scale: float = 1.0) -> ModelState:
    """one + scale·other"""
    return combine(lambda a, b: a.add(b, alpha=scale), one, other)


def minus(one: NamedTensors, other: NamedTensors) -> ModelState:
    return combine(torch.sub, one, other)


def scaled(tree: NamedTensors, scale: float) -> ModelState:
    return combine(lambda a: a * scale, tree)


def divided(tree: NamedTensors, divisors: Tensor) -> ModelState:
    """Each client's tensors, [K, ...], by its own divisor, [K]."""
    return combine(lambda a: a / divisors.view(-1, *[1] * (a.dim() - 1)), tree)


def zeros(tree: NamedTensors) -> ModelState:
    return combine(torch.zeros_like, tree)


def only(tree: NamedTensors, names: Iterable[str]) -> ModelState:
    """The tensors of these names."""
    return {name: tree[name] for name in names}


def real(tree: NamedTensors) -> ModelState:
    """Without counters and other whole numbers, which have no differences worth adding up."""
    return {name: tensor for name, tensor in tree.items() if tensor.is_floating_point()}


def norm(tree: NamedTensors) -> Tensor:
    """The Euclidean norm over all real tensors."""
    norms = torch._foreach_norm(list(real(tree).values()))
    result: Tensor = torch.stack(list(norms)).norm()
    return result


def flat(tree: NamedTensors) -> Tensor:
    """All real tensors in one vector."""
    return torch.cat([tensor.reshape(-1) for tensor in real(tree).values()])
