"""Forward and backward passes of MLPs without autograd: dense layers with activations between them.

For small layers autograd's bookkeeping takes longer than the arithmetic. MLPs are common and their backward pass is a
few lines, so it is written out here: a step takes half the time of the stacked layers for the presets' models, and a
seventh for tiny ones. It serves where there is no native execution: without a compiler, on GPUs, and for gradient rules
that are written in Python. Samples come flattened, so flattening is no layer here.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn

from winnow.learn.stack.execution_interface import Batch
from winnow.learn.stack.layer_sequence import SequenceLayer
from winnow.learn.stack.per_sample_losses import Loss


class MlpLayer(Protocol):
    """One layer on [K, B, ...]; what `backward` needs is kept by `forward`."""

    def bind(self, parameters: dict[str, Tensor]) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
    def backward(self, gradient: Tensor, gradients: dict[str, Tensor], *, to_input: bool) -> Tensor: ...


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

    def backward(self, gradient: Tensor, gradients: dict[str, Tensor], *, to_input: bool) -> Tensor:
        weight, bias = self.names
        gradients[weight] = torch.bmm(gradient.mT, self.x)
        if bias is not None:
            gradients[bias] = gradient.sum(1)
        return torch.bmm(gradient, self.weight) if to_input else gradient


class _Activation:
    """An activation whose derivative follows from its output. It overwrites its input, the output of a dense layer."""

    def __init__(self, apply: Callable[[Tensor], Tensor], times_derivative: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.apply = apply
        self.times_derivative = times_derivative

    def bind(self, parameters: dict[str, Tensor]) -> None:
        """Nothing to bind."""

    def forward(self, x: Tensor) -> Tensor:
        self.y = self.apply(x)
        return self.y

    def backward(self, gradient: Tensor, gradients: dict[str, Tensor], *, to_input: bool) -> Tensor:
        return self.times_derivative(gradient, self.y)


def _relu() -> _Activation:
    return _Activation(torch.relu_, partial(torch.ops.aten.threshold_backward.default, threshold=0))


def _tanh() -> _Activation:
    return _Activation(torch.tanh_, torch.ops.aten.tanh_backward.default)


def _sigmoid() -> _Activation:
    return _Activation(torch.sigmoid_, torch.ops.aten.sigmoid_backward.default)


_ACTIVATIONS: dict[type[nn.Module], Callable[[], _Activation]] = {
    nn.ReLU: _relu,
    nn.Tanh: _tanh,
    nn.Sigmoid: _sigmoid,
}


class MlpGradients:
    """Gradients of an MLP, layer by layer from the samples to the outputs and back."""

    def __init__(self, layers: list[MlpLayer], order: tuple[str, ...]) -> None:
        self.layers = layers
        self.order = order

    def bind(self, trained: list[Tensor], loss: Loss) -> None:
        self.loss = loss
        parameters = dict(zip(self.order, trained, strict=True))
        for layer in self.layers:
            layer.bind(parameters)

    def outputs(self, x: Tensor) -> Tensor:
        """For samples [K, B, ...]."""
        x = x.flatten(2)
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def gradients(self, batch: Batch) -> tuple[list[Tensor], Tensor]:
        weight = batch.weight
        x = self.outputs(batch.x.view(*weight.shape, *batch.x.shape[1:]))
        losses, gradient = self.loss.losses_and_gradients(x.flatten(0, 1), batch.y)
        gradient = gradient.view(x.shape).mul_(weight.unsqueeze(2))
        gradients: dict[str, Tensor] = {}
        for place in range(len(self.layers) - 1, -1, -1):
            gradient = self.layers[place].backward(gradient, gradients, to_input=place > 0)
        return [gradients[name] for name in self.order], losses.view(weight.shape)


def find_mlp(line: list[SequenceLayer] | None, order: tuple[str, ...]) -> MlpGradients | None:
    """The gradients of a sequence of layers if it is an MLP, with every dense layer used once; None if it is not."""
    layers = [_mlp_layer(piece) for piece in line or () if not _flattens(piece.layer)]
    known = [layer for layer in layers if layer is not None]
    used = sorted(name for layer in known if isinstance(layer, _Dense) for name in layer.names if name)
    overwritten = all(isinstance(before, _Dense) for before, after in pairwise(known) if isinstance(after, _Activation))
    fits = len(known) == len(layers) and overwritten and used == sorted(order)
    return MlpGradients(known, order) if fits and isinstance(next(iter(known), None), _Dense) else None


def _mlp_layer(piece: SequenceLayer) -> MlpLayer | None:
    """What a layer does; None if it is not known here."""
    layer, kind = piece.layer, type(piece.layer)
    if isinstance(layer, nn.Linear) and kind is nn.Linear:
        prefix = f"{piece.path}." if piece.path else ""
        return _Dense(f"{prefix}weight", None if layer.bias is None else f"{prefix}bias")
    return _ACTIVATIONS[kind]() if kind in _ACTIVATIONS else None


def _flattens(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1)
