"""Stacked depthwise convolutions as a sum over shifted images, for steps that are compiled.

A compiler makes one kernel of the sum and what surrounds it: a step of ShuffleNet v2 takes 5.0 ms on an H200, and 6.0
with the library's convolutions. Uncompiled, each tap would be a launch of its own.
"""

from itertools import product

from torch import Tensor, nn
from torch.nn import functional

from winnow.learn.stack.stacked_layers.convolution_matmul import ConvolutionWindow

MAX_TAPS = 9
"""Of a kernel that is written out tap by tap."""


def depthwise_window(plain: nn.Module) -> ConvolutionWindow | None:
    """That of a convolution of images whose channels stay apart; None where the sum does not pay, or does not do."""
    if type(plain) is not nn.Conv2d or not plain.groups == plain.in_channels == plain.out_channels:
        return None
    if isinstance(plain.padding, str) or plain.padding_mode != "zeros" or max(plain.dilation) > 1:
        return None
    (high, wide), (stride, pace), (down, across) = plain.kernel_size, plain.stride, plain.padding
    if high * wide > MAX_TAPS:
        return None
    return ConvolutionWindow(kernel=(high, wide), stride=(stride, pace), padding=(down, across))


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, window: ConvolutionWindow) -> Tensor:
    """[K·B, C, H, W] with [K, C, 1, h, w] and [K, C] -> [K·B, C, H', W']."""
    (down, across), (stride, pace) = window.padding, window.stride
    rows, columns = window.sides(x.shape[2:])
    padded = functional.pad(x, (across, across, down, down))
    images = padded.view(len(weight), -1, *padded.shape[1:])
    taps = weight[:, None, :, 0, :, :, None, None]  # [K, 1, C, h, w, 1, 1]
    result = None if bias is None else bias[:, None, :, None, None]
    for i, j in product(range(window.kernel[0]), range(window.kernel[1])):
        seen = images[..., i : i + stride * (rows - 1) + 1 : stride, j : j + pace * (columns - 1) + 1 : pace]
        tap = taps[:, :, :, i, j] * seen
        result = tap if result is None else result + tap
    assert result is not None
    return result.flatten(0, 1)
