"""Augmentation of a batch: every sample is changed in its own way, at random.

`weak` changes samples a little, `strong` much, and `view` crops and colours images anew, for contrastive learning. How
depends on what samples are: images [n, channels, height, width], rows of a table (numbers [n, columns]), or words
(identifiers of tokens [n, length]). Draws are a sample's own (`SampleDraws`), so that all executions, cohorts and
devices see the same samples.
"""

import torch
from torch import Tensor

from winnow.data.preprocessing import IMAGE_NDIM
from winnow.learn import augment_images as images
from winnow.learn.sample_draws import SampleDraws

WEAK_NOISE, STRONG_NOISE = 0.05, 0.1
"""Standard deviations of the noise on a table's columns, in the units of the features: after scaling."""
MASKED_COLUMNS = 0.2
WEAK_DROPOUT, STRONG_DROPOUT, SWAPPED_WORDS = 0.05, 0.15, 0.1
NO_WORD = 0
"""What a dropped word becomes: the identifier of padding."""


@torch.no_grad()
def weak(x: Tensor, draws: SampleDraws) -> Tensor:
    """Images are shifted, and in colour mirrored; numbers get a little noise; few words are dropped."""
    if not x.is_floating_point():
        return _dropped(x, WEAK_DROPOUT, draws.uniform(x.shape[1]))
    if _are_images(x):
        return images.shifted(x, draws.uniform(images.SHIFT_DRAWS))
    return x + WEAK_NOISE * draws.normal(x.shape[1])


@torch.no_grad()
def strong(x: Tensor, draws: SampleDraws) -> Tensor:
    """Images are changed weakly, then distorted in two ways, and a part of each is cut out; columns get more noise and
    some are masked; more words are dropped, and neighbours exchanged.
    """
    if not x.is_floating_point():
        return _dropped(_exchanged(x, draws.uniform(x.shape[1] // 2)), STRONG_DROPOUT, draws.uniform(x.shape[1]))
    if _are_images(x):
        return images.distorted(x, draws.uniform(images.DISTORTION_DRAWS))
    return _masked(x + STRONG_NOISE * draws.normal(x.shape[1]), draws.uniform(x.shape[1]))


@torch.no_grad()
def view(x: Tensor, draws: SampleDraws) -> Tensor:
    """Another crop of each image in other colours; of other samples, a strong change."""
    return images.cropped(x, draws.uniform(images.CROP_DRAWS)) if _are_images(x) else strong(x, draws)


def _are_images(x: Tensor) -> bool:
    return x.dim() == IMAGE_NDIM


def _masked(rows: Tensor, draws: Tensor) -> Tensor:
    """A masked column is 0, which is the mean of a standardised one."""
    return torch.where(draws < MASKED_COLUMNS, 0.0, rows)


def _dropped(words: Tensor, share: float, draws: Tensor) -> Tensor:
    return torch.where(draws < share, NO_WORD, words)


def _exchanged(words: Tensor, draws: Tensor) -> Tensor:
    """Some neighbours exchanged, a draw a pair. Padding stays at the end."""
    first = torch.arange(0, words.shape[1] - 1, 2, device=words.device)
    swap = (draws < SWAPPED_WORDS) & (words[:, first + 1] != NO_WORD)
    mixed = words.clone()
    mixed[:, first] = torch.where(swap, words[:, first + 1], words[:, first])
    mixed[:, first + 1] = torch.where(swap, words[:, first], words[:, first + 1])
    return mixed
