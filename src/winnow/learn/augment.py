"""Augmentation of a batch: every sample is changed in its own way, at random.

`weak` changes samples a little, `strong` much, and `views` gives two changed versions of each. How depends on what they
are: images [channels, height, width], rows of a table (numbers), or words (identifiers of tokens). A batch has any
leading dimensions.

Draws come from one named stream, or from one a client where the batch holds the samples of several, client after client
and as many of each. A call takes streams of its own: then a sample's draws follow from its place among its client's
samples alone, whatever padding comes behind and whoever else is in the batch, and all executions see the same samples.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from winnow.data.preprocessing import IMAGE_NDIM
from winnow.learn import augment_images as images

Streams: TypeAlias = np.random.Generator | Sequence[np.random.Generator]
"""One stream, or one a client."""
Change: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""What becomes of samples, given each one's draws."""

WEAK_NOISE, STRONG_NOISE = 0.05, 0.1
"""Standard deviations of the noise on a table's columns, in the units of the features: after scaling."""
MASKED_COLUMNS = 0.2
SMALLEST_DRAW = 2.0**-25
WEAK_DROPOUT, STRONG_DROPOUT, SWAPPED_WORDS = 0.05, 0.15, 0.1
NO_WORD = 0
"""What a dropped word becomes: the identifier of padding."""


def weak(x: Tensor, rng: Streams) -> Tensor:
    """Images are shifted, and in colour mirrored; numbers get a little noise; few words are dropped."""
    if not x.is_floating_point():
        return _changed(x, 1, x.shape[-1], rng, lambda words, draws: _dropped(words, WEAK_DROPOUT, draws))
    if not _are_images(x):
        return _changed(x, 1, x.shape[-1], rng, lambda rows, draws: rows + WEAK_NOISE * _normal(draws))
    return _changed(x, 3, images.SHIFT_DRAWS, rng, images.shifted)


def strong(x: Tensor, rng: Streams) -> Tensor:
    """Images are changed weakly, then distorted in two ways, and a part of each is cut out; columns get more noise and
    some are masked; more words are dropped, and neighbours exchanged.
    """
    dimensions, count, change = _strong_change(x)
    return _changed(x, dimensions, count, rng, change)


def views(x: Tensor, rng: Streams) -> tuple[Tensor, Tensor]:
    """Two versions of each sample for contrastive learning: of images, other crops in other colours."""
    dimensions, count, change = (3, images.CROP_DRAWS, images.cropped) if _are_images(x) else _strong_change(x)
    draws = _uniform(x, dimensions, 2 * count, rng)
    first, second = (_with_draws(x, dimensions, each, change) for each in draws.split(count, dim=1))
    return first, second


def _strong_change(x: Tensor) -> tuple[int, int, Change]:
    """How many dimensions a sample has, how many draws it takes, and what is done."""
    if not x.is_floating_point():
        return 1, 2 * x.shape[-1], _garbled
    return (3, images.DISTORTION_DRAWS, images.distorted) if _are_images(x) else (1, 2 * x.shape[-1], _masked)


def _are_images(x: Tensor) -> bool:
    return x.is_floating_point() and x.dim() >= IMAGE_NDIM


def _changed(x: Tensor, dimensions: int, count: int, rng: Streams, change: Change) -> Tensor:
    return _with_draws(x, dimensions, _uniform(x, dimensions, count, rng), change)


@torch.no_grad()
def _with_draws(x: Tensor, dimensions: int, draws: Tensor, change: Change) -> Tensor:
    """The change of a batch with one leading dimension, for any number of them."""
    return change(x.flatten(0, x.dim() - dimensions - 1), draws).reshape(x.shape)


def _uniform(x: Tensor, dimensions: int, count: int, rng: Streams) -> Tensor:
    """[samples, count] numbers between 0 and 1, drawn on the CPU, whatever the device, so that devices agree."""
    streams = [rng] if isinstance(rng, np.random.Generator) else rng
    samples, rest = divmod(math.prod(x.shape[: x.dim() - dimensions]), len(streams))
    assert not rest, "as many samples of each client"
    drawn = np.concatenate([each.random((samples, count), dtype=np.float32) for each in streams])
    return torch.from_numpy(drawn).to(x.device)


def _normal(uniform: Tensor) -> Tensor:
    return math.sqrt(2) * torch.erfinv(2 * uniform.clamp_min(SMALLEST_DRAW) - 1)


def _masked(rows: Tensor, draws: Tensor) -> Tensor:
    """A masked column is 0, which is the mean of a standardised one."""
    noise, mask = draws.chunk(2, dim=1)
    return torch.where(mask < MASKED_COLUMNS, 0.0, rows + STRONG_NOISE * _normal(noise))


def _dropped(words: Tensor, share: float, draws: Tensor) -> Tensor:
    return torch.where(draws < share, NO_WORD, words)


def _garbled(words: Tensor, draws: Tensor) -> Tensor:
    """Some neighbours exchanged, then words dropped. Padding stays at the end."""
    drop, exchange = draws.chunk(2, dim=1)
    first = torch.arange(0, words.shape[1] - 1, 2, device=words.device)
    swap = (exchange[:, first] < SWAPPED_WORDS) & (words[:, first + 1] != NO_WORD)
    mixed = words.clone()
    mixed[:, first] = torch.where(swap, words[:, first + 1], words[:, first])
    mixed[:, first + 1] = torch.where(swap, words[:, first], words[:, first + 1])
    return _dropped(mixed, STRONG_DROPOUT, drop)
