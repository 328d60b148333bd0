"""A training step's forward pass of ShuffleNet v2 by fused kernels, from the stacked twins of its layers."""

from typing import cast

from torch import Tensor, nn

from winnow.learn.networks import ShuffleDownsamplingUnit, ShuffleNetV2, ShuffleUnit
from winnow.learn.stack.fused.chain import ChainLayer, Normalisation
from winnow.learn.stack.fused.shuffle_unit import run_chain, run_unit
from winnow.learn.stack.precision import Precision
from winnow.learn.stack.stacked_layers.convolution import StackedConvolution
from winnow.learn.stack.stacked_layers.convolution_matmul import seen_through
from winnow.learn.stack.stacked_layers.normalisation import StackedBatchNorm


def fused_forward(twin: ShuffleNetV2, x: Tensor, precision: Precision) -> Tensor:
    """[K·B, C, H, W] -> [K·B, outputs] in training mode, without padding."""
    stem = cast(StackedConvolution, twin.stem)
    assert stem.window is not None
    seen = seen_through(x, stem.window).view(len(x), -1, *stem.window.sides(x.shape[2:]))
    first = _layer(stem, cast(StackedBatchNorm, twin.norm), relu=True, dense=True)
    x = run_chain(seen, [first], precision)
    for unit in twin.stages:
        if isinstance(unit, ShuffleDownsamplingUnit):
            x = run_unit(x, _layers(unit.aside), _layers(unit.branch), precision)
        else:
            x = run_unit(x, None, _layers(cast(ShuffleUnit, unit).branch), precision)
    x = run_chain(x, _layers(twin.last), precision)
    outputs: Tensor = twin.head(x.mean((2, 3)))
    return outputs


def _layers(sequence: nn.Sequential) -> list[ChainLayer]:
    """Convolution, normalisation and perhaps a rectifier, again and again."""
    parts, layers = list(sequence), []
    for place, part in enumerate(parts):
        if isinstance(part, StackedConvolution):
            relu = place + 2 < len(parts) and isinstance(parts[place + 2], nn.ReLU)
            layers.append(_layer(part, cast(StackedBatchNorm, parts[place + 1]), relu=relu))
    return layers


def _layer(convolution: StackedConvolution, norm: StackedBatchNorm, *, relu: bool, dense: bool = False) -> ChainLayer:
    window = None if dense else convolution.depthwise_window
    assert norm.weight is not None
    assert norm.bias is not None
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    return ChainLayer(
        weight=convolution.weight.flatten(2),
        window=None if window is None else (*window.kernel, window.stride[0], window.padding[0]),
        norm=Normalisation(
            gamma=norm.weight,
            beta=norm.bias,
            running_mean=norm.running_mean,
            running_var=norm.running_var,
            tracked=norm.num_batches_tracked,
            epsilon=norm.epsilon,
            momentum=norm.momentum or 0.0,
            relu=relu,
        ),
    )
