"""Stacked normalisation layers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from winnow.learn.stack.stacked_layers.base import FoldedShape, StackedLayer, UnstackableError
from winnow.learn.stack.trainable_state import split_clients


class StackedBatchNorm(StackedLayer):
    """Batch normalisation with statistics, running statistics and affine parameters of each client.

    Padding takes no part in the statistics. Running statistics move as in `torch.nn.BatchNorm1d`: by `momentum`, or as
    the mean over all batches without one.
    """

    tensors = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    weight: Tensor | None  # [K, C], as are the others
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None  # [K]

    def __init__(self, plain: nn.modules.batchnorm._BatchNorm, fold: FoldedShape) -> None:
        super().__init__(plain, fold)
        self.epsilon = plain.eps
        self.momentum = plain.momentum

    def forward(self, x: Tensor) -> Tensor:
        if self._fuses(x):
            return self._fused(x)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # sums in half precision would lose the mean
        rows = by_channel(wide, self.fold.clients)
        if self.running_mean is not None and self.running_var is not None and not self.training:
            deviation = (self.running_var + self.epsilon).sqrt()
            normal = (rows - _per_channel(self.running_mean)) / _per_channel(deviation)
        else:
            normal, mean, variance, count = _standardise(rows, self.fold.mask, self.epsilon)
            if self.training and self.running_mean is not None:
                self._track(mean, variance * (count / (count - 1)).view(-1, 1))
        return channel_affine(normal, self.weight, self.bias).reshape(x.shape)

    def _fuses(self, x: Tensor) -> bool:
        """On a CUDA device launches count, and torch's own layer takes few: ShuffleNet v2's step 9 ms instead of 15.

        But it knows no padding.
        """
        tracked = self.training and self.running_mean is not None and self.momentum is not None
        return x.is_cuda and tracked and self.fold.mask is None

    def _fused(self, x: Tensor) -> Tensor:
        """torch's own layer, with the clients' channels side by side: [B, K·C, positions]."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        rows = by_channel(x, self.fold.clients)
        clients, samples, channels, positions = rows.shape
        mean, variance, weight, bias = (
            None if tensor is None else tensor.view(-1)
            for tensor in (self.running_mean, self.running_var, self.weight, self.bias)
        )
        result = functional.batch_norm(
            rows.transpose(0, 1).reshape(samples, clients * channels, positions),
            mean, variance, weight, bias,
            training=True, momentum=self.momentum or 0.0, eps=self.epsilon,
        )  # fmt: skip
        return result.view(samples, clients, channels, positions).transpose(0, 1).reshape(x.shape)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = self.momentum
        pace = 1 / self.num_batches_tracked.to(mean.dtype).unsqueeze(1) if momentum is None else momentum
        self.running_mean.lerp_(mean, pace)
        self.running_var.lerp_(variance, pace)


class _Standardise(torch.autograd.Function):
    """(x - mean) / √(variance + ε) over a client's samples and positions, [K, B, C, P], leaving padding out.

    The gradient is written out, because differentiating masked means step by step takes several times the memory.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        keep = None if mask is None else mask.to(x.dtype)[:, :, None, None]
        samples = x.new_full((len(x),), x.shape[1]) if mask is None else mask.sum(1).to(x.dtype)
        count = samples * x.shape[3]
        mean = _total(x, keep) / count.view(-1, 1)
        centred = x - _per_channel(mean)
        variance = _total(centred.square(), keep) / count.view(-1, 1)
        inverse = (variance + epsilon).rsqrt()
        normal = centred.mul_(_per_channel(inverse))
        ctx.save_for_backward(normal, inverse, count, keep)
        ctx.mark_non_differentiable(mean, variance, count)
        return normal, mean, variance, count

    @staticmethod
    def backward(ctx: Any, slope: Tensor, *_: Tensor) -> tuple[Tensor, None, None]:
        normal, inverse, count, keep = ctx.saved_tensors
        mean_slope = _total(slope, keep) / count.view(-1, 1)
        mean_product = _total(slope * normal, keep) / count.view(-1, 1)
        result = torch.addcmul(slope - _per_channel(mean_slope), normal, _per_channel(mean_product), value=-1)
        result = result.mul_(_per_channel(inverse))
        return result if keep is None else result.mul_(keep), None, None


_standardise: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] = _Standardise.apply


def _total(x: Tensor, keep: Tensor | None) -> Tensor:
    """Sums over samples and positions: [K, B, C, P] -> [K, C]."""
    return (x if keep is None else x * keep).sum((1, 3))


def _per_channel(values: Tensor) -> Tensor:
    """[K, C] -> [K, 1, C, 1]."""
    return values[:, None, :, None]


def by_channel(x: Tensor, clients: int) -> Tensor:
    """[K·B, C, ...] -> [K, B, C, positions]."""
    return x.reshape(clients, len(x) // clients, x.shape[1], x.shape[2:].numel())


def channel_affine(rows: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scale and shift each channel of [K, B, C, P] by its client's [K, C]."""
    if weight is None:
        return rows
    if bias is None:
        return rows * _per_channel(weight)
    return torch.addcmul(_per_channel(bias), rows, _per_channel(weight))


class StackedGroupNorm(StackedLayer):
    """Statistics are a sample's own; only scale and shift are a client's."""

    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, plain: nn.GroupNorm, fold: FoldedShape) -> None:
        super().__init__(plain, fold)
        self.groups = plain.num_groups
        self.epsilon = plain.eps

    def forward(self, x: Tensor) -> Tensor:
        normal = functional.group_norm(x, self.groups, eps=self.epsilon)
        rows = by_channel(normal, self.fold.clients)
        return channel_affine(rows, self.weight, self.bias).view(x.shape)


class StackedInstanceNorm(StackedLayer):
    """As `StackedGroupNorm`, with every channel a group."""

    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, plain: nn.modules.instancenorm._InstanceNorm, fold: FoldedShape) -> None:
        super().__init__(plain, fold)
        if plain.track_running_stats:
            raise UnstackableError("there is no stacked version of instance normalisation with running statistics")
        self.epsilon = plain.eps

    def forward(self, x: Tensor) -> Tensor:
        normal = functional.instance_norm(x, eps=self.epsilon)
        rows = by_channel(normal, self.fold.clients)
        return channel_affine(rows, self.weight, self.bias).view(x.shape)


class StackedLayerNorm(StackedLayer):
    """Statistics are a sample's own; only scale and shift are a client's."""

    weight: Tensor | None  # [K, *shape]
    bias: Tensor | None

    def __init__(self, plain: nn.LayerNorm, fold: FoldedShape) -> None:
        super().__init__(plain, fold)
        self.shape = plain.normalized_shape
        self.epsilon = plain.eps

    def forward(self, x: Tensor) -> Tensor:
        normal = functional.layer_norm(x, self.shape, eps=self.epsilon)
        if self.weight is None:
            return normal
        between = [1] * (x.dim() - len(self.shape))
        rows = split_clients(normal, self.fold.clients)
        weight = self.weight.view(-1, *between, *self.shape)
        if self.bias is None:
            return (rows * weight).flatten(0, 1)
        return torch.addcmul(self.bias.view(weight.shape), rows, weight).flatten(0, 1)
