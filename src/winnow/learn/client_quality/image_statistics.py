"""A few statistics of each image: what tells noise, blur, other lighting and foreign images from what a model expects.

They are computed from the images as the model gets them, so that a client and the reference are compared in one scale.
"""

import torch
from torch import Tensor
from torch.nn import functional

BRIGHTNESS, CONTRAST, COLOUR, EDGES, GRAIN, FLAT = "brightness", "contrast", "colour", "edges", "grain", "flat"
TOP, LEFT, CENTRE = "top", "left", "centre"

IMAGE_STATISTICS = (BRIGHTNESS, CONTRAST, COLOUR, EDGES, GRAIN, FLAT, TOP, LEFT, CENTRE)
"""The columns of `image_statistics`."""

_FLAT_SHARE = 0.02
"""Neighbouring pixels that differ by less than this share of the image's contrast are one surface."""
_ROUNDING = 1e-6
_CHUNK_PIXELS = 1 << 16
"""So many pixels at once stay in a processor's cache."""


def image_statistics(images: Tensor) -> Tensor:
    """`IMAGE_STATISTICS` of images [n, c, h, w] or [n, h, w]: [n, s].

    Mean and standard deviation over the pixels; how far channels lie from their mean; the root mean square of the steps
    between neighbours (edges) and of what is neither surface nor edge (grain: Immerkær's Laplacian, 1996), both as
    shares of the contrast; the share of neighbours that are alike; and how much brighter the upper half is than the
    lower, the left than the right, and the middle than the whole.
    """
    x = images if images.ndim == 4 else images.unsqueeze(1)
    if not len(x):
        return x.new_zeros(0, len(IMAGE_STATISTICS), dtype=torch.float32)
    chunk = len(x) if x.is_cuda else max(1, _CHUNK_PIXELS // x[0].numel())
    return torch.cat([_statistics(part.float()) for part in torch.split(x, chunk)])


def _statistics(x: Tensor) -> Tensor:
    channels = x.shape[1]
    grey = x.mean(1) if channels > 1 else x[:, 0]
    colour = (x - grey[:, None]).abs().mean((1, 2, 3)) if channels > 1 else grey.new_zeros(len(x))
    if min(grey.shape[1:]) < 3:  # a line has no neighbours on both sides
        grey = functional.pad(grey, (1, 1, 1, 1), mode="replicate")
    (_, height, width), pixels = grey.shape, grey.flatten(1)
    brightness = pixels.mean(1)
    centred = grey - brightness[:, None, None]
    contrast = _square(centred).sqrt()
    plain = contrast <= _ROUNDING * pixels.abs().amax(1)  # all pixels alike: there is nothing to divide by
    unit = centred / contrast.masked_fill(plain, torch.inf)[:, None, None]
    across, down = unit.diff(dim=2), unit.diff(dim=1)
    grain = across.diff(dim=2).diff(n=2, dim=1)
    rows, columns = unit.mean(2), unit.mean(1)
    middle = unit[:, height // 4 : height - height // 4, width // 4 : width - width // 4]
    return torch.stack(
        [
            brightness,
            contrast,
            colour,
            ((_square(across) + _square(down)) / 2).sqrt(),
            _square(grain).sqrt() / 6,
            (_alike(across) + _alike(down)) / 2,
            rows[:, : height // 2].mean(1) - rows[:, height - height // 2 :].mean(1),
            columns[:, : width // 2].mean(1) - columns[:, width - width // 2 :].mean(1),
            middle.mean((1, 2)),
        ],
        dim=1,
    )


def _square(part: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(part, dim=(1, 2))
    return norm.square() / part[0].numel()


def _alike(part: Tensor) -> Tensor:
    return (part.abs() < _FLAT_SHARE).mean((1, 2), dtype=torch.float32)
