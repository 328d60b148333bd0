"""ShuffleNet's units and other chains of layers as single functions of a stacked model."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from winnow.learn.stack.fused import chain
from winnow.learn.stack.fused.chain import ChainLayer, Rows
from winnow.learn.stack.precision import Precision


def run_chain(x: Tensor, layers: Sequence[ChainLayer], precision: Precision) -> Tensor:
    """[K·B, C, H, W] through a chain."""
    leaves = [leaf for layer in layers for leaf in layer.leaves]
    result: Tensor = _Chain.apply(x, tuple(layers), precision, *leaves)
    return result


def run_unit(
    x: Tensor, aside: Sequence[ChainLayer] | None, branch: Sequence[ChainLayer], precision: Precision
) -> Tensor:
    """[K·B, C, H, W] through both halves of a unit, interleaved; without layers of its own the first half passes by."""
    leaves = [leaf for layer in (*(aside or ()), *branch) for leaf in layer.leaves]
    result: Tensor = _Unit.apply(x, None if aside is None else tuple(aside), tuple(branch), precision, *leaves)
    return result


def _as_rows(x: Tensor, clients: int) -> Tensor:
    """[K·B, C, H, W] -> [K, N, C], a view where channels come last in memory."""
    return x.permute(0, 2, 3, 1).contiguous().view(clients, -1, x.shape[1])


def _as_images(rows: Tensor, sides: tuple[int, int]) -> Tensor:
    return rows.view(-1, *sides, rows.shape[2]).permute(0, 3, 1, 2)


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layers: tuple[ChainLayer, ...], precision: Precision, *leaves: Tensor) -> Tensor:
        rows = _as_rows(x, len(leaves[0]))
        start = Rows(values=rows, start=0, channels=x.shape[1], sides=(x.shape[2], x.shape[3]))
        values = chain.forward(start, layers, precision)
        out = torch.empty_like(values[-1].values)
        chain.copy_out(values[-1], out, 0, 1)
        ctx.values, ctx.layers, ctx.precision = values, layers, precision
        return _as_images(out, values[-1].sides)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        values, last = ctx.values, ctx.values[-1]
        slopes = chain.copy_back(_as_rows(slope, len(last.values)), 0, 1, last, chain.rows_like(last))
        out = chain.rows_like(values[0]) if ctx.needs_input_grad[0] else None
        found = chain.backward(values, ctx.layers, slopes, out, ctx.precision, add=False)
        return None if out is None else _as_images(out.values, out.sides), None, None, *found


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        aside: tuple[ChainLayer, ...] | None,
        branch: tuple[ChainLayer, ...],
        precision: Precision,
        *leaves: Tensor,
    ) -> Tensor:
        rows, sides, channels = _as_rows(x, len(leaves[0])), (x.shape[2], x.shape[3]), x.shape[1]
        if aside is None:
            half = channels // 2
            first = [Rows(values=rows, start=0, channels=half, sides=sides)]
            second = chain.forward(Rows(values=rows, start=half, channels=half, sides=sides), branch, precision)
        else:
            whole = Rows(values=rows, start=0, channels=channels, sides=sides)
            first, second = (chain.forward(whole, layers, precision) for layers in (aside, branch))
        ends = first[-1], second[-1]
        out = rows.new_empty(*ends[1].values.shape[:2], 2 * ends[1].channels)
        for place, end in enumerate(ends):
            chain.copy_out(end, out, place, 2)
        ctx.first, ctx.second, ctx.aside, ctx.branch, ctx.precision = first, second, aside, branch, precision
        return _as_images(out, ends[1].sides)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        first, second = ctx.first, ctx.second
        slopes = _as_rows(slope, len(second[-1].values))
        into = torch.empty_like(first[0].values)
        half = first[0].channels
        own = Rows(values=into, start=0, channels=half, sides=first[0].sides)
        found = []
        if ctx.aside is None:
            chain.copy_back(slopes, 0, 2, first[0], own)
            own = Rows(values=into, start=half, channels=half, sides=first[0].sides)
        else:
            before = chain.copy_back(slopes, 0, 2, first[-1], chain.rows_like(first[-1]))
            found = chain.backward(first, ctx.aside, before, own, ctx.precision, add=False)
        before = chain.copy_back(slopes, 1, 2, second[-1], chain.rows_like(second[-1]))
        found += chain.backward(second, ctx.branch, before, own, ctx.precision, add=ctx.aside is not None)
        return _as_images(into, first[0].sides), None, None, None, *found
