"""Random changes of images [n, channels, height, width] in batches: a row of draws from 0 to 1 says all of an image's.

Nothing is known here of how pixels were scaled, so an image's own lowest value stands for black and its own range for
that of colours. Only images of three channels are mirrored: a mirrored digit is no digit.

What resampling has made is changed further in place: fresh memory for every intermediate result would take a third of
the time.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

SHIFT_DRAWS = 3
MAX_SHIFT = 0.125
"""Of the side of an image, as in FixMatch (Sohn et al. 2020, section 2.3)."""

DISTORTIONS = (
    "rotate",
    "shear across",
    "shear down",
    "translate across",
    "translate down",
    "contrast",
    "brightness",
    "posterise",
    "sharpness",
)
APPLIED = 2
DISTORTION_DRAWS = SHIFT_DRAWS + 2 * len(DISTORTIONS) + 3
MAX_ANGLE, MAX_SHEAR, MAX_TRANSLATION = math.pi / 6, 0.3, 0.3
FAINTEST, CLEAREST = 0.05, 0.95
"""How much of its contrast, brightness or sharpness an image keeps (RandAugment's range in FixMatch, appendix D)."""
MIN_BITS, MAX_BITS = 4, 8
MAX_CUTOUT = 0.5
"""Of the side of an image."""

CROP_DRAWS = 10
SMALLEST_CROP, MAX_STRETCH = 0.2, 4 / 3
"""Of the area, and of the ratio of the sides (BYOL, appendix B)."""
JITTERED, JITTER, GREY = 0.8, 0.4, 0.2


def shifted(x: Tensor, draws: Tensor) -> Tensor:
    """Each moved by whole pixels, at most an eighth of its side; what comes in is the reflection at the edge."""
    rows, columns = (_shifted_places(size, draws[:, axis]) for axis, size in enumerate(x.shape[-2:]))
    if _in_colour(x):
        columns = torch.where(draws[:, 2:3] < 0.5, columns.flip(1), columns)
    width = x.shape[-1]
    places = (width * rows[:, :, None] + columns[:, None, :]).flatten(1).unsqueeze(1)
    flat = x.flatten(2)
    return flat.gather(2, places.expand_as(flat)).view(x.shape)


def distorted(x: Tensor, draws: Tensor) -> Tensor:
    """Shifted, then two distortions of a random strength each, then a square cut out."""
    kinds = len(DISTORTIONS)
    shift, which, strength, cut = torch.split(draws, [SHIFT_DRAWS, kinds, kinds, 3], dim=1)
    chosen = torch.zeros_like(which).scatter_(1, which.topk(APPLIED, dim=1).indices, value=1.0)
    signed = chosen * (2 * strength - 1)
    kept = (1 - chosen * (1 - FAINTEST - (CLEAREST - FAINTEST) * strength))[:, :, None, None, None]
    x = _resampled(shifted(x, shift), _affine(*signed[:, :5].unbind(1)))
    contrast, brightness, _, sharpness = kept[:, 5:].unbind(1)
    _fade(x, _mean(x), contrast)
    _fade(x, _lowest(x), brightness)
    _exchange(x, _posterised(x, strength[:, 7]), chosen[:, 7, None, None, None])
    _fade(x, _smoothed(x), sharpness)
    _cut_out(x, cut)
    return x


def cropped(x: Tensor, draws: Tensor) -> Tensor:
    """A crop stretched to the full size, in colour maybe mirrored, jittered and grey."""
    area, stretch, *centre, mirror, jitter, brightness, contrast, saturation, grey = draws.unbind(1)
    share = SMALLEST_CROP + (1 - SMALLEST_CROP) * area
    ratio = (math.log(MAX_STRETCH) * (2 * stretch - 1)).exp()
    across, down = ((share * factor).sqrt().clamp(max=1) for factor in (ratio, 1 / ratio))
    if _in_colour(x):
        across = torch.where(mirror < 0.5, -across, across)
    place = [(1 - size.abs()) * (2 * at - 1) for size, at in zip((across, down), centre, strict=True)]
    zero = torch.zeros_like(across)
    x = _resampled(x, torch.stack([across, zero, place[0], zero, down, place[1]], 1).reshape(-1, 2, 3))
    jittered = jitter < JITTERED
    light, clear, deep = (
        torch.where(jittered, 1 + JITTER * (2 * each - 1), 1.0)[:, None, None, None]
        for each in (brightness, contrast, saturation)
    )
    mean = _mean(x)
    _fade(x, _lowest(x), light)
    _fade(x, mean, clear)
    if _in_colour(x):
        deep = torch.where((grey < GREY)[:, None, None, None], 0.0, deep)
        _fade(x, x.mean(1, keepdim=True), deep)
    return x


def _in_colour(x: Tensor) -> bool:
    return x.shape[1] == 3


def _shifted_places(size: int, draws: Tensor) -> Tensor:
    """[n, size]: which pixels of a line come to lie where, reflected at its ends."""
    reach = round(MAX_SHIFT * size)
    by = (draws * (2 * reach + 1)).floor().long() - reach
    places = torch.arange(size, device=draws.device) + by[:, None]
    return (size - 1) - ((size - 1) - places.abs()).abs()


def _affine(turn: Tensor, shear_across: Tensor, shear_down: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """[n, 2, 3] matrices from where pixels go to where they come from; 0 leaves an image as it is."""
    cosine, sine = (MAX_ANGLE * turn).cos(), (MAX_ANGLE * turn).sin()
    a, b = MAX_SHEAR * shear_across, MAX_SHEAR * shear_down
    rows = [cosine - sine * b, cosine * a - sine, MAX_TRANSLATION * across]
    rows += [sine + cosine * b, sine * a + cosine, MAX_TRANSLATION * down]
    return torch.stack(rows, 1).reshape(-1, 2, 3)


def _resampled(x: Tensor, matrices: Tensor) -> Tensor:
    grid = _affine_grid(matrices.to(x.dtype), x.shape[2], x.shape[3])
    return functional.grid_sample(x, grid, padding_mode="border", align_corners=False)


def _affine_grid(matrices: Tensor, height: int, width: int) -> Tensor:
    """As `functional.affine_grid`, which multiplies a matrix for each image: [n, height, width, 2]."""
    down, across = (
        (torch.arange(size, device=matrices.device, dtype=matrices.dtype) * 2 + 1) / size - 1
        for size in (height, width)
    )
    down, across = down.repeat_interleave(width), across.repeat(height)  # of every pixel: short inner loops are slow
    by_column, by_row, constant = matrices.unsqueeze(3).unbind(2)
    places = (by_row * down).add_(constant).add_(by_column * across)
    return places.view(-1, 2, height, width).permute(0, 2, 3, 1)


def _fade(x: Tensor, towards: Tensor, kept: Tensor) -> None:
    """So much of what distinguishes x from the other is kept."""
    x.sub_(towards).mul_(kept.to(x.dtype)).add_(towards)


def _exchange(x: Tensor, other: Tensor, share: Tensor) -> None:
    """The other, a tensor for this alone, where the share is 1, and x where it is 0; faster than `torch.where`."""
    x.add_(other.sub_(x).mul_(share))


def _mean(x: Tensor) -> Tensor:
    return x.mean((1, 2, 3), keepdim=True)


def _lowest(x: Tensor) -> Tensor:
    return x.amin((1, 2, 3), keepdim=True)


def _posterised(x: Tensor, strength: Tensor) -> Tensor:
    """As many steps from the lowest to the highest value as so many bits have."""
    bits = (MIN_BITS + (MAX_BITS + 1 - MIN_BITS) * strength).floor()
    steps = (2**bits - 1)[:, None, None, None]
    low = _lowest(x)
    width = (x.amax((1, 2, 3), keepdim=True) - low).clamp_min(torch.finfo(x.dtype).tiny)
    return (x - low).div_(width).mul_(steps).round_().div_(steps).mul_(width).add_(low)


def _smoothed(x: Tensor) -> Tensor:
    """Each pixel five parts, its neighbours one part each."""
    wide = functional.pad(x, (1, 1, 1, 1), mode="replicate")
    lines = (wide[:, :, :-2] + wide[:, :, 1:-1]).add_(wide[:, :, 2:])
    square = (lines[..., :-2] + lines[..., 1:-1]).add_(lines[..., 2:])
    return square.add_(x, alpha=4).div_(13)


def _cut_out(x: Tensor, draws: Tensor) -> None:
    """A square of at most half the side becomes the mean of its image, channel by channel."""
    size = MAX_CUTOUT * draws[:, 0]

    def inside(pixels: int, centre: Tensor) -> Tensor:
        places = (torch.arange(pixels, device=x.device) + 0.5) / pixels
        return ((places - centre[:, None]).abs() < size[:, None] / 2).to(x.dtype)

    rows, columns = inside(x.shape[2], draws[:, 1]), inside(x.shape[3], draws[:, 2])
    square = (rows[:, :, None] * columns[:, None, :]).unsqueeze(1)
    _exchange(x, x.mean((2, 3), keepdim=True).expand_as(x).clone(), square)
