"""Stacked convolutions as batched matrix products, for CUDA devices.

cuDNN takes one group of a grouped convolution after another, and one client's is far too little to fill the chip. With
products a step of ShuffleNet v2 takes half the time on an H200; docs/speed.md has the figures.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

MAX_UNFOLDED_INPUTS = 256
"""Inputs that one output sees, for windows larger than a point: they are copied out, so many would take much memory."""

Pair = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class ConvolutionWindow:
    """What moves over an image, each as (vertical, horizontal)."""

    kernel: Pair
    stride: Pair
    padding: Pair

    @classmethod
    def of(cls, plain: nn.Module) -> "ConvolutionWindow | None":
        """That of a plain convolution of images; None where products do not pay, or do not do."""
        if type(plain) is not nn.Conv2d or plain.groups > 1 or plain.padding_mode != "zeros":
            return None
        if isinstance(plain.padding, str) or max(plain.dilation) > 1:
            return None
        kernel, stride, padding = (_pair(each) for each in (plain.kernel_size, plain.stride, plain.padding))
        small = kernel == (1, 1) or plain.in_channels * kernel[0] * kernel[1] <= MAX_UNFOLDED_INPUTS
        return cls(kernel=kernel, stride=stride, padding=padding) if small else None

    @property
    def is_point(self) -> bool:
        return (self.kernel, self.stride, self.padding) == ((1, 1), (1, 1), (0, 0))

    def sides(self, image: torch.Size) -> tuple[int, ...]:
        """Sides of what comes out of an image of H × W."""
        each = zip(image, self.kernel, self.stride, self.padding, strict=True)
        return tuple((side + 2 * padding - kernel) // stride + 1 for side, kernel, stride, padding in each)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, window: ConvolutionWindow) -> Tensor:
    """[K·B, C, H, W] with [K, O, C, h, w] and [K, O] -> [K·B, O, H', W']."""
    seen = x.flatten(2) if window.is_point else _seen_through(x, window)
    clients, outputs, inputs = *weight.shape[:2], seen.shape[1]
    rows = seen.view(clients, -1, *seen.shape[1:])
    kernels = weight.reshape(clients, outputs, inputs)
    small = outputs * inputs <= (outputs + inputs) * rows.shape[3]
    result = _sample_by_sample(rows, kernels) if small else _client_by_client(rows, kernels)
    if bias is not None:
        result = result + bias[:, None, :, None]
    return result.reshape(len(x), outputs, *window.sides(x.shape[2:]))


def _sample_by_sample(rows: Tensor, kernels: Tensor) -> Tensor:
    """[K, B, R, P], [K, O, R] -> [K, B, O, P] with the kernels repeated for every sample: no larger than the samples.

    Nothing is copied into another order, and the sums over many positions are spread over the chip.
    """
    repeated = kernels.unsqueeze(1).expand(-1, rows.shape[1], -1, -1)
    return torch.matmul(repeated, rows)


def _client_by_client(rows: Tensor, kernels: Tensor) -> Tensor:
    """[K, B, R, P], [K, O, R] -> [K, B, O, P] by one product a client, for large kernels and few positions."""
    clients, samples, inputs, positions = rows.shape
    beside = rows.transpose(1, 2).reshape(clients, inputs, samples * positions)
    return torch.bmm(kernels, beside).view(clients, -1, samples, positions).transpose(1, 2)


class _SeenThrough(torch.autograd.Function):
    """What each position of a window sees: [n, C, H, W] -> [n, C·h·w, positions].

    `functional.unfold` does the same with a launch for every image.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: ConvolutionWindow) -> Tensor:
        ctx.window, ctx.sides = window, x.shape[2:]
        (down, across), (high, wide) = window.padding, window.kernel
        padded = functional.pad(x, (across, across, down, down)) if down or across else x
        views = padded.unfold(2, high, window.stride[0]).unfold(3, wide, window.stride[1])
        return views.permute(0, 1, 4, 5, 2, 3).reshape(len(x), x.shape[1] * high * wide, -1)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, None]:
        """A tap after another: `functional.fold` does it in one launch, which was the longest of LeNet-5's step."""
        if not ctx.needs_input_grad[0]:
            return None, None
        window, (height, width) = ctx.window, ctx.sides
        (down, across), (high, wide), (stride, pace) = window.padding, window.kernel, window.stride
        rows, columns = window.sides(ctx.sides)
        taps = slope.view(len(slope), -1, high, wide, rows, columns)
        result = slope.new_zeros(len(slope), taps.shape[1], height + 2 * down, width + 2 * across)
        for i, j in product(range(high), range(wide)):
            result[:, :, i : i + stride * rows : stride, j : j + pace * columns : pace] += taps[:, :, i, j]
        return result[:, :, down : down + height, across : across + width], None


_seen_through: Callable[..., Tensor] = _SeenThrough.apply


def _pair(numbers: tuple[int, ...]) -> Pair:
    return numbers[0], numbers[1]
