"""A model's layers, as the compiled code wants to be told of them."""

from collections.abc import Mapping
from itertools import accumulate
from math import prod

import torch
from torch import Tensor, nn

from winnow.learn.stack.layer_sequence import SequenceLayer
from winnow.learn.stack.native import ctypes_structures
from winnow.learn.stack.native.ctypes_structures import LayerSpec
from winnow.learn.stack.native.kernel_calls import LOSSES as NATIVE_LOSSES
from winnow.learn.stack.native.kernel_calls import PRECISIONS, NativeModel
from winnow.learn.stack.per_sample_losses import LOSSES, Loss
from winnow.learn.stack.trainable_state import StateLayout

Image = tuple[int, int, int]

_ACTIVATIONS: dict[type[nn.Module], int] = {
    nn.ReLU: ctypes_structures.RELU,
    nn.Tanh: ctypes_structures.TANH,
    nn.Sigmoid: ctypes_structures.SIGMOID,
}
_POOLS: dict[type[nn.Module], int] = {
    nn.MaxPool2d: ctypes_structures.MAX_POOL,
    nn.AvgPool2d: ctypes_structures.MEAN_POOL,
}


@torch.no_grad()
def native_model(module: nn.Module, line: list[SequenceLayer] | None, sample: Tensor, loss: Loss) -> NativeModel | None:
    """The model for compiled code, or None if it has no such form; a sample [1, ...] shows its shapes."""
    layout = StateLayout.of(module)
    if line is None or loss != LOSSES.get(loss.name) or loss.name not in NATIVE_LOSSES:
        return None
    precisions = {sample.dtype, *(parameter.dtype for parameter in module.parameters())}
    if len(precisions) > 1 or sample.dtype not in PRECISIONS:
        return None
    used = [name for piece in line for name, _ in piece.named_parameters()]
    if sorted(used) != sorted(layout.trained) or layout.carried or layout.aliases:
        return None
    sizes = [module.get_parameter(name).numel() for name in layout.trained]
    places = dict(zip(layout.trained, accumulate(sizes, initial=0), strict=False))
    sample, image = sample.clone(), _image(sample)
    layers, paths, channels = [], [], []
    for piece in line:
        layer = _spec(piece, sample, places)
        if layer is None:
            return None
        sample = piece.layer(sample)
        layers.append(layer)
        paths.append(piece.path if sample.dim() in (2, 4) else "")
        channels.append(_image(sample)[0])
    if not layers or sample.dim() != 2:
        return None
    return NativeModel(
        layers=layers,
        paths=paths,
        channels=channels,
        image=image,
        parameters=sum(sizes),
        loss=loss.name,
        precision=sample.dtype,
    )


def _image(sample: Tensor) -> Image:
    """Channels, rows and columns; whatever is no image is a list of values."""
    shape = sample.shape[1:]
    return (shape[0], shape[1], shape[2]) if len(shape) == 3 else (prod(shape), 1, 1)


def _spec(piece: SequenceLayer, sample: Tensor, places: Mapping[str, int]) -> LayerSpec | None:
    """What a layer does to such a sample; None if compiled code knows no such layer."""
    layer, kind = piece.layer, type(piece.layer)
    own = {name.rpartition(".")[2]: places[name] for name, _ in piece.named_parameters()}
    weights = {"weight": own.get("weight", -1), "bias": own.get("bias", -1)}
    if isinstance(layer, nn.Linear) and kind is nn.Linear and sample.dim() == 2:
        return LayerSpec(kind=ctypes_structures.DENSE, outputs=layer.out_features, **weights)
    if isinstance(layer, nn.Conv2d) and kind is nn.Conv2d and sample.dim() == 4:
        window = _convolution_window(layer)
        size = {"kind": ctypes_structures.CONVOLUTION, "outputs": layer.out_channels}
        return LayerSpec(**size, **weights, **window) if window else None
    if isinstance(layer, (nn.MaxPool2d, nn.AvgPool2d)) and kind in _POOLS and sample.dim() == 4:
        window = _pool_window(layer)
        return LayerSpec(kind=_POOLS[kind], **window) if window else None
    if kind in _ACTIVATIONS:
        return LayerSpec(kind=_ACTIVATIONS[kind])
    if isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1):
        return LayerSpec(kind=ctypes_structures.FLATTEN)
    return None


def _convolution_window(layer: nn.Conv2d) -> dict[str, int] | None:
    padding = layer.padding
    if isinstance(padding, str):
        return None
    inside = all(pad < size for pad, size in zip(padding, layer.kernel_size, strict=True))
    plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    return _window(layer.kernel_size, layer.stride, padding) if plain and inside else None


def _pool_window(layer: nn.MaxPool2d | nn.AvgPool2d) -> dict[str, int] | None:
    plain = _pair(layer.padding) == (0, 0) and not layer.ceil_mode
    if isinstance(layer, nn.MaxPool2d):
        plain = plain and _pair(layer.dilation) == (1, 1) and not layer.return_indices
    else:
        plain = plain and layer.divisor_override is None
    return _window(_pair(layer.kernel_size), _pair(layer.stride), (0, 0)) if plain else None


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _window(size: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...]) -> dict[str, int]:
    names = ("rows", "cols", "row_stride", "col_stride", "row_padding", "col_padding")
    return dict(zip(names, (*size, *stride, *padding), strict=True))
