"""Chains of convolution, batch normalisation and rectifier on rows [K, N, C], forwards and backwards."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from winnow.learn.stack.fused import kernels
from winnow.learn.stack.precision import Precision

ENOUGH_PROGRAMS = 264
"""Two for each multiprocessor of an H200: smaller tiles are taken until there are so many."""
TILES = ((128, 64), (64, 64), (32, 64), (32, 32), (16, 32))
"""Rows and columns of a product's tile."""
PRODUCT_DEPTH = 32
WIDE_CHANNELS = 64


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """A batch normalisation's tensors, [K, C]; `tracked` is [K]."""

    gamma: Tensor
    beta: Tensor
    running_mean: Tensor
    running_var: Tensor
    tracked: Tensor
    epsilon: float
    momentum: float
    relu: bool


@dataclass(frozen=True, kw_only=True)
class ChainLayer:
    """A convolution without bias, and the normalisation that follows it.

    A pointwise one has the weight [K, O, C], a depthwise one [K, C, taps] and a window (high, wide, stride, padding).
    """

    weight: Tensor
    window: tuple[int, int, int, int] | None
    norm: Normalisation

    @property
    def leaves(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.weight, self.norm.gamma, self.norm.beta


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Some channels of rows [K, N, ...], of images of these sides; normalised, if so, by whoever reads them."""

    values: Tensor
    start: int
    channels: int
    sides: tuple[int, int]
    relu: bool = False
    scale: Tensor | None = None
    shift: Tensor | None = None
    mean: Tensor | None = None
    inverse: Tensor | None = None

    @property
    def layout(self) -> tuple[int, int]:
        """Numbers from row to row, and to the first channel."""
        return self.values.shape[2], self.start

    @property
    def normal(self) -> bool:
        return self.scale is not None


@dataclass(frozen=True, kw_only=True)
class Slopes:
    """Of rows before their rectifier, [K, N, C], with sums of each block for the normalisation."""

    values: Tensor
    sums: Tensor


def input_precision(precision: Precision) -> str:
    return "tf32" if precision == "tf32" else "ieee"


def forward(x: Rows, layers: Sequence[ChainLayer], precision: Precision) -> list[Rows]:
    """What each layer is given, and what comes out of the last."""
    values = [x]
    for layer in layers:
        values.append(_convolve(values[-1], layer, precision))
    return values


def backward(
    values: Sequence[Rows],
    layers: Sequence[ChainLayer],
    slopes: Slopes,
    out: Rows | None,
    precision: Precision,
    *,
    add: bool,
) -> list[Tensor]:
    """The slopes of all leaves, in the layers' order; that of the input goes to `out` if it is wanted."""
    found: list[Tensor] = []
    for place in reversed(range(len(layers))):
        x, y, layer = values[place], values[place + 1], layers[place]
        gamma, beta, coefficients = _finish_slopes(y, layer, slopes.sums)
        weight = _weight_slope(x, y, layer, slopes.values, coefficients, precision)
        found[:0] = [weight, gamma, beta]
        target = out if place == 0 else rows_like(x)
        if target is None:
            break
        sums = _input_slope(x, y, layer, slopes.values, coefficients, target, precision, add=add and place == 0)
        slopes = Slopes(values=target.values, sums=sums)
    return found


def copy_out(x: Rows, out: Tensor, start: int, step: int) -> None:
    """Rows, normalised if they are to be, into every `step`-th channel of others [K, N, C']."""
    clients, count, _ = x.values.shape
    rows, wide = _element_tile(count, x.channels)
    grid = (_cdiv(count, rows), _cdiv(x.channels, wide), clients)
    kernels.normalised_copy[grid](
        x.values, x.scale, x.shift, out, count, x.channels, *x.layout, out.shape[2], start, step,
        NORMAL=x.normal, RELU=x.relu, ROWS=rows, CHANNELS=wide,
    )  # fmt: skip


def copy_back(slopes: Tensor, start: int, step: int, x: Rows, out: Rows) -> Slopes:
    """The slopes of rows that `copy_out` wrote, into `out`."""
    clients, count, wide_row = slopes.shape
    rows, wide = _element_tile(count, x.channels)
    blocks = _cdiv(count, rows)
    sums = slopes.new_empty(clients, blocks, 2, x.channels)
    grid = (blocks, _cdiv(x.channels, wide), clients)
    kernels.normalised_copy_backward[grid](
        slopes, x.values, x.scale, x.shift, x.mean, x.inverse, out.values, sums,
        count, x.channels, wide_row, start, step, *out.layout,
        NORMAL=x.normal, RELU=x.relu, ROWS=rows, CHANNELS=wide,
    )  # fmt: skip
    return Slopes(values=out.values, sums=sums)


def _convolve(x: Rows, layer: ChainLayer, precision: Precision) -> Rows:
    clients, count, _ = x.values.shape
    if layer.window is None:
        outputs, sides, made = layer.weight.shape[1], x.sides, count
        tile, wide = _product_tile(count, outputs, clients)
    else:
        outputs, sides = x.channels, _sides(x.sides, layer.window)
        made = count // (x.sides[0] * x.sides[1]) * sides[0] * sides[1]
        tile, wide = _element_tile(made, outputs)
    y, blocks = x.values.new_empty(clients, made, outputs), _cdiv(made, tile)
    sums = x.values.new_empty(clients, blocks, 2, outputs)
    grid = (blocks, _cdiv(outputs, wide), clients)
    if layer.window is None:
        kernels.pointwise_forward[grid](
            x.values, x.scale, x.shift, layer.weight, y, sums, count, x.channels, outputs, *x.layout,
            NORMAL=x.normal, RELU=x.relu, PRECISION=input_precision(precision), ROWS=tile, OUT=wide, IN=PRODUCT_DEPTH,
        )  # fmt: skip
    else:
        kernels.depthwise_forward[grid](
            x.values, x.scale, x.shift, layer.weight, y, sums, count, made, outputs, *x.sides, *sides, *x.layout,
            NORMAL=x.normal, RELU=x.relu, **_window(layer.window), ROWS=tile, CHANNELS=wide,
        )  # fmt: skip
    return _normalise(y, sums, tile, sides, layer.norm)


def _normalise(y: Tensor, sums: Tensor, tile: int, sides: tuple[int, int], norm: Normalisation) -> Rows:
    clients, count, channels = y.shape
    mean, inverse, scale, shift = y.new_empty(4, clients, channels).unbind()
    few = _few_channels(channels)
    kernels.finish_moments[(clients, _cdiv(channels, few))](
        sums, norm.gamma, norm.beta, norm.running_mean, norm.running_var, norm.tracked, mean, inverse, scale, shift,
        count, channels, sums.shape[1], tile, norm.epsilon, norm.momentum,
        BLOCKS=_many_blocks(sums), CHANNELS=few,
    )  # fmt: skip
    return Rows(
        values=y, start=0, channels=channels, sides=sides,
        relu=norm.relu, scale=scale, shift=shift, mean=mean, inverse=inverse,
    )  # fmt: skip


def _finish_slopes(y: Rows, layer: ChainLayer, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of γ and β, and the coefficients (a, b, c) of the slope of what is normalised, [K, 3, C]."""
    clients, count, channels = y.values.shape
    gamma, beta = torch.empty_like(layer.norm.gamma), torch.empty_like(layer.norm.beta)
    coefficients = y.values.new_empty(clients, 3, channels)
    few = _few_channels(channels)
    kernels.finish_slopes[(clients, _cdiv(channels, few))](
        sums, layer.norm.gamma, y.mean, y.inverse, gamma, beta, coefficients, count, channels, sums.shape[1],
        BLOCKS=_many_blocks(sums), CHANNELS=few,
    )  # fmt: skip
    return gamma, beta, coefficients


def _input_slope(
    x: Rows,
    y: Rows,
    layer: ChainLayer,
    slopes: Tensor,
    coefficients: Tensor,
    out: Rows,
    precision: Precision,
    *,
    add: bool,
) -> Tensor:
    clients, count, _ = x.values.shape
    made, outputs = y.values.shape[1:]
    point = layer.window is None
    tile, wide = _product_tile(count, x.channels, clients) if point else _element_tile(count, x.channels)
    blocks = _cdiv(count, tile)
    sums = slopes.new_empty(clients, blocks, 2, x.channels)
    grid = (blocks, _cdiv(x.channels, wide), clients)
    tensors = (
        slopes, y.values, coefficients, layer.weight, x.values, x.scale, x.shift, x.mean, x.inverse, out.values, sums,
    )  # fmt: skip
    kind: dict[str, Any] = {"NORMAL": x.normal, "RELU": x.relu, "ADD": add}
    if layer.window is None:
        kernels.pointwise_backward_input[grid](
            *tensors, count, x.channels, outputs, *x.layout, *out.layout,
            **kind, PRECISION=input_precision(precision), ROWS=tile, IN=wide, OUT=PRODUCT_DEPTH,
        )  # fmt: skip
    else:
        kernels.depthwise_backward_input[grid](
            *tensors, count, made, x.channels, *x.sides, *y.sides, *x.layout, *out.layout,
            **kind, **_window(layer.window), ROWS=tile, CHANNELS=wide,
        )  # fmt: skip
    return sums


def _weight_slope(
    x: Rows, y: Rows, layer: ChainLayer, slopes: Tensor, coefficients: Tensor, precision: Precision
) -> Tensor:
    clients, count, _ = x.values.shape
    made, outputs = y.values.shape[1:]
    if layer.window is None:
        outs, wide, step = 64, 64, 32
        tiles = _cdiv(outputs, outs) * _cdiv(x.channels, wide)
    else:
        wide, step = 32, 32
        tiles = _cdiv(x.channels, wide)
    shares = max(1, min(_cdiv(made, 2 * step), _cdiv(ENOUGH_PROGRAMS, tiles * clients)))
    share = _cdiv(_cdiv(made, shares), step) * step
    shares = _cdiv(made, share)
    partial = slopes.new_empty(clients, shares, *layer.weight.shape[1:])
    tensors = (slopes, y.values, coefficients, x.values, x.scale, x.shift, partial)
    kind: dict[str, Any] = {"NORMAL": x.normal, "RELU": x.relu}
    if layer.window is None:
        kernels.pointwise_backward_weight[(tiles, shares, clients)](
            *tensors, made, x.channels, outputs, *x.layout, share,
            **kind, PRECISION=input_precision(precision), ROWS=step, IN=wide, OUT=outs,
        )  # fmt: skip
    else:
        kernels.depthwise_backward_weight[(tiles, shares, clients)](
            *tensors, count, made, x.channels, *x.sides, *y.sides, *x.layout, share,
            **kind, **_window(layer.window), TAPS=16, ROWS=step, CHANNELS=wide,
        )  # fmt: skip
    return partial[:, 0] if shares == 1 else partial.sum(1)


def rows_like(x: Rows) -> Rows:
    values = x.values.new_empty(*x.values.shape[:2], x.channels)
    return Rows(values=values, start=0, channels=x.channels, sides=x.sides)


def _sides(sides: tuple[int, int], window: tuple[int, int, int, int]) -> tuple[int, int]:
    high, wide, stride, padding = window
    return (sides[0] + 2 * padding - high) // stride + 1, (sides[1] + 2 * padding - wide) // stride + 1


def _window(window: tuple[int, int, int, int]) -> dict[str, int]:
    return dict(zip(("HIGH", "WIDE", "STRIDE", "PAD"), window, strict=True))


def _product_tile(rows: int, columns: int, clients: int) -> tuple[int, int]:
    for tile in TILES:
        if _cdiv(rows, tile[0]) * _cdiv(columns, tile[1]) * clients >= ENOUGH_PROGRAMS:
            return tile
    return TILES[-1]


def _element_tile(rows: int, channels: int) -> tuple[int, int]:
    return (64 if rows >= 4096 else 32 if rows >= 1024 else 16), (WIDE_CHANNELS if channels > 32 else 32)


def _few_channels(channels: int) -> int:
    return 16 if channels <= 256 else 64


def _many_blocks(sums: Tensor) -> int:
    blocks = sums.shape[1]
    return next(size for size in (16, 32, 64, 128) if blocks <= size or size == 128)


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)
