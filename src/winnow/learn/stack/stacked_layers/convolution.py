"""Stacked convolutions and transposed convolutions in one, two and three dimensions."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from winnow.learn.stack.stacked_layers import convolution_matmul, depthwise_taps
from winnow.learn.stack.stacked_layers.base import FoldedShape, StackedLayer
from winnow.learn.stack.trainable_state import split_clients

_CONVOLUTIONS: tuple[Callable[..., Tensor], ...] = (functional.conv1d, functional.conv2d, functional.conv3d)
_TRANSPOSED: tuple[Callable[..., Tensor], ...] = (
    functional.conv_transpose1d,
    functional.conv_transpose2d,
    functional.conv_transpose3d,
)

_FEW_PRODUCTS = 1_000_000  # measured on one core: below, a call costs more than its arithmetic


class StackedConvolution(StackedLayer):
    """Each client's samples convolved with its own kernels.

    One grouped convolution for all clients saves calls, which is what counts on an accelerator and for little work; for
    more work on a CPU one call a client is faster, because grouped ones miss the library's best kernels. On a CUDA
    device matrix products are faster than both, where they do.
    """

    weight: Tensor  # [K, out, in / groups, ...]
    bias: Tensor | None  # [K, out]

    def __init__(self, plain: nn.Conv1d | nn.Conv2d | nn.Conv3d, fold: FoldedShape) -> None:
        super().__init__(plain, fold)
        self.groups = plain.groups
        self.window = convolution_matmul.ConvolutionWindow.of(plain)
        self.depthwise_window = depthwise_taps.depthwise_window(plain)
        self.convolve = _CONVOLUTIONS[len(plain.kernel_size) - 1]
        self.padding_mode = plain.padding_mode
        self.pad_widths = plain._reversed_padding_repeated_twice
        padding = plain.padding if plain.padding_mode == "zeros" else 0
        self.arguments: dict[str, Any] = {"stride": plain.stride, "padding": padding, "dilation": plain.dilation}

    def forward(self, x: Tensor) -> Tensor:
        if self.padding_mode != "zeros":
            x = functional.pad(x, self.pad_widths, mode=self.padding_mode)
        if self.window is not None and x.is_cuda and len(self.weight) > 1:
            return convolution_matmul.convolve(x, self.weight, self.bias, self.window)
        if self.depthwise_window is not None and torch.compiler.is_compiling():
            return depthwise_taps.convolve(x, self.weight, self.bias, self.depthwise_window)
        return self._grouped(x) if self._calls_dominate(x) else self._one_by_one(x)

    def _calls_dominate(self, x: Tensor) -> bool:
        clients, channels = len(self.weight), x.shape[1]
        products = self.weight.numel() // clients * (x.numel() // (clients * channels))  # of one client, at stride 1
        return clients > 1 and (x.device.type != "cpu" or products < _FEW_PRODUCTS)

    def _one_by_one(self, x: Tensor) -> Tensor:
        clients = len(self.weight)
        biases = [None] * clients if self.bias is None else self.bias.unbind()
        per_client = zip(x.chunk(clients), self.weight.unbind(), biases, strict=True)
        return torch.cat([self.convolve(own, w, b, groups=self.groups, **self.arguments) for own, w, b in per_client])

    def _grouped(self, x: Tensor) -> Tensor:
        clients = len(self.weight)
        side_by_side = split_clients(x, clients).transpose(0, 1).flatten(1, 2)  # [B, K·C, ...]
        bias = None if self.bias is None else self.bias.flatten()
        groups = clients * self.groups
        result = self.convolve(side_by_side, self.weight.flatten(0, 1), bias, groups=groups, **self.arguments)
        return result.view(len(result), clients, -1, *result.shape[2:]).transpose(0, 1).flatten(0, 1)


class StackedTransposedConvolution(StackedConvolution):
    """As `StackedConvolution`; the kernels are [K, in, out / groups, ...]."""

    def __init__(self, plain: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d, fold: FoldedShape) -> None:
        StackedLayer.__init__(self, plain, fold)
        self.groups = plain.groups
        self.window = self.depthwise_window = None
        self.convolve = _TRANSPOSED[len(plain.kernel_size) - 1]
        self.padding_mode = "zeros"
        self.arguments = {
            "stride": plain.stride,
            "padding": plain.padding,
            "output_padding": plain.output_padding,
            "dilation": plain.dilation,
        }
