"""Forward and backward passes called directly, for models that are a line of dense layers and activations.

For small layers autograd's bookkeeping takes longer than the arithmetic. Such models are common (every MLP), and their
backward pass is a few lines, so it is written out here; everything else goes through autograd. Flattening needs no
link: a chain works on samples already flattened.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from winnow.learn.stack.execution import Batch
from winnow.learn.stack.losses import Loss


class Link(Protocol):
    """One layer on [K, B, ...]; what `backward` needs is kept by `forward`."""

    def bind(self, parameters: dict[str, Tensor]) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
    def backward(self, slope: Tensor, gradients: dict[str, Tensor], *, to_input: bool) -> Tensor: ...


class _Dense:
    def __init__(self, weight: str, bias: str | None) -> None:
        self.names = weight, bias

    def bind(self, parameters: dict[str, Tensor]) -> None:
        weight, bias = self.names
        self.weight = parameters[weight]
        self.transposed = self.weight.mT
        self.bias = None if bias is None else parameters[bias].unsqueeze(1)

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        if self.bias is None:
            return torch.bmm(x, self.transposed)
        return torch.baddbmm(self.bias, x, self.transposed)

    def backward(self, slope: Tensor, gradients: dict[str, Tensor], *, to_input: bool) -> Tensor:
        weight, bias = self.names
        gradients[weight] = torch.bmm(slope.mT, self.x)
        if bias is not None:
            gradients[bias] = slope.sum(1)
        return torch.bmm(slope, self.weight) if to_input else slope


class _Activation:
    """An activation whose derivative follows from its output. It overwrites its input, which a dense layer made."""

    def __init__(self, apply: Callable[[Tensor], Tensor], times_derivative: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.apply = apply
        self.times_derivative = times_derivative

    def bind(self, parameters: dict[str, Tensor]) -> None:
        """Nothing to bind."""

    def forward(self, x: Tensor) -> Tensor:
        self.y = self.apply(x)
        return self.y

    def backward(self, slope: Tensor, gradients: dict[str, Tensor], *, to_input: bool) -> Tensor:
        return self.times_derivative(slope, self.y)


def _relu() -> _Activation:
    return _Activation(torch.relu_, partial(torch.ops.aten.threshold_backward.default, threshold=0))


def _tanh() -> _Activation:
    return _Activation(torch.tanh_, torch.ops.aten.tanh_backward.default)


def _sigmoid() -> _Activation:
    return _Activation(torch.sigmoid_, torch.ops.aten.sigmoid_backward.default)


_ACTIVATIONS: dict[object, Callable[[], _Activation]] = {
    **dict.fromkeys((nn.ReLU, torch.relu, functional.relu, "relu"), _relu),
    **dict.fromkeys((nn.Tanh, torch.tanh, functional.tanh, "tanh"), _tanh),
    **dict.fromkeys((nn.Sigmoid, torch.sigmoid, functional.sigmoid, "sigmoid"), _sigmoid),
}


class Chain:
    """A line of links, from the samples to the outputs."""

    def __init__(self, links: list[Link], order: tuple[str, ...], loss: Loss) -> None:
        self.links = links
        self.order = order
        self.loss = loss

    def bind(self, trained: list[Tensor]) -> None:
        parameters = dict(zip(self.order, trained, strict=True))
        for link in self.links:
            link.bind(parameters)

    def gradients(self, batch: Batch) -> tuple[list[Tensor], Tensor]:
        weight = batch.weight
        x = batch.x.view(*weight.shape, -1)
        for link in self.links:
            x = link.forward(x)
        losses, slope = self.loss.slope(x.flatten(0, 1), batch.y)
        slope = slope.view(x.shape).mul_(weight.unsqueeze(2))
        gradients: dict[str, Tensor] = {}
        for place in range(len(self.links) - 1, -1, -1):
            slope = self.links[place].backward(slope, gradients, to_input=place > 0)
        return [gradients[name] for name in self.order], losses.view(weight.shape)


def find_chain(module: nn.Module, order: tuple[str, ...], loss: Loss) -> Chain | None:
    """The chain that a model is, or None: dense layers, each used once, with activations between them."""
    if any(type(part) is not nn.Linear for part in module.modules() if list(part.parameters(recurse=False))):
        return None
    try:
        nodes = list(fx.symbolic_trace(module).graph.nodes)
    except Exception:  # a model that cannot be traced may fail in any way, and is not a chain
        return None
    in_line = all(after.all_input_nodes == [before] for before, after in pairwise(nodes))
    steps = [_links(module, node) for node in nodes[1:-1]]
    if not in_line or None in steps:
        return None
    links = [link for step in steps for link in step or ()]
    dense = [link for link in links if isinstance(link, _Dense)]
    used = sorted(name for link in dense for name in link.names if name)
    overwritten = all(isinstance(before, _Dense) for before, after in pairwise(links) if isinstance(after, _Activation))
    fits = overwritten and isinstance(next(iter(links), None), _Dense) and used == sorted(order)
    return Chain(links, order, loss) if fits else None


def _links(module: nn.Module, node: fx.Node) -> tuple[Link, ...] | None:
    """What a node does, as no link (nothing to do) or one; None if it is not known here."""
    layer = module.get_submodule(str(node.target)) if node.op == "call_module" else None
    kind = node.target if layer is None else type(layer)
    if isinstance(layer, nn.Linear) and kind is nn.Linear:
        return (_Dense(f"{node.target}.weight", None if layer.bias is None else f"{node.target}.bias"),)
    if kind in _ACTIVATIONS:
        return (_ACTIVATIONS[kind](),)
    flattens = isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1)
    flattens = flattens or (kind in (torch.flatten, "flatten") and node.args[1:] == (1,) and not node.kwargs)
    return () if flattens or isinstance(layer, nn.Identity) else None
