"""The networks behind the named models."""

from collections.abc import Sequence
from math import gcd

import torch
from torch import Tensor, nn
from torch.nn import functional

Image = tuple[int, int, int]


MAX_GROUPS = 8
"""Of channels that are normalised together."""


class SmallCnn(nn.Module):
    """Convolution, convolution, pooling, dense, dense; convolutions may be normalised, in groups of channels.

    Those of 3 × 3 are padded and keep an image's size; those of 5 × 5 are not, as in LeNet.
    """

    def __init__(
        self, image: Image, channels: tuple[int, int], hidden: int, outputs: int, *, norm: bool, kernel: int = 3
    ) -> None:
        super().__init__()
        depth, height, width = image
        first, second = channels
        padding = 1 if kernel == 3 else 0
        self.conv1 = _normalised(nn.Conv2d(depth, first, kernel, padding=padding), norm=norm)
        self.conv2 = _normalised(nn.Conv2d(first, second, kernel, padding=padding), norm=norm)
        lost = kernel - 1 - 2 * padding
        sides = [((side - lost) // 2 - lost) // 2 for side in (height, width)]
        self.fc1 = nn.Linear(second * sides[0] * sides[1], hidden)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        hidden: Tensor = self.fc1(x.flatten(1))
        outputs: Tensor = self.fc2(functional.relu(hidden))
        return outputs


def _normalised(convolution: nn.Conv2d, *, norm: bool) -> nn.Module:
    wide = convolution.out_channels
    return nn.Sequential(convolution, nn.GroupNorm(gcd(wide, MAX_GROUPS), wide)) if norm else convolution


class LeNet5(nn.Module):
    """LeNet-5: 32 × 32 images as published; smaller ones are padded so that enough is left for the second pooling."""

    def __init__(
        self, image: Image, outputs: int, channels: tuple[int, int] = (6, 16), hidden: tuple[int, int] = (120, 84)
    ) -> None:
        super().__init__()
        depth, height, width = image
        margin = 0 if min(height, width) >= 32 else 2
        inner = 2 if min(height, width) < 20 else 0
        self.conv1 = nn.Conv2d(depth, channels[0], 5, padding=margin)
        self.conv2 = nn.Conv2d(*channels, 5, padding=inner)
        sides = [((side - 4 + 2 * margin) // 2 - 4 + 2 * inner) // 2 for side in (height, width)]
        self.fc1 = nn.Linear(channels[1] * sides[0] * sides[1], hidden[0])
        self.fc2 = nn.Linear(*hidden)
        self.fc3 = nn.Linear(hidden[1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.fc1(x.flatten(1)))
        outputs: Tensor = self.fc3(functional.relu(self.fc2(x)))
        return outputs


class ResidualBlock(nn.Module):
    """Two normalised convolutions beside a shortcut, added before the last rectifier."""

    def __init__(self, channels: int, wide: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, wide, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(wide)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(wide)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != wide:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class ResNet18(nn.Module):
    """Four stages of two residual blocks each; the later three halve the resolution and double the width."""

    def __init__(self, channels: int, outputs: int, widths: Sequence[int] = (64, 128, 256, 512)) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        before = [widths[0], *widths[:-1]]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(ResidualBlock(narrow, wide, 1 if stage == 0 else 2), ResidualBlock(wide, wide, 1))
                for stage, (narrow, wide) in enumerate(zip(before, widths, strict=True))
            )
        )
        self.head = nn.Linear(widths[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(functional.relu(self.norm(self.stem(x))))
        outputs: Tensor = self.head(x.mean((2, 3)))
        return outputs


def _shuffle(x: Tensor) -> Tensor:
    """Interleave the two halves of the channels, so that the next unit mixes them."""
    samples, channels, *sides = x.shape
    return x.view(samples, 2, channels // 2, *sides).transpose(1, 2).reshape(x.shape)


def _pointwise(channels: int, wide: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True)]


def _depthwise(channels: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False), nn.BatchNorm2d(channels)]


class ShuffleUnit(nn.Module):
    """The basic unit: one half of the channels passes by, the other is convolved."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(*_pointwise(half, half), *_depthwise(half, 1), *_pointwise(half, half))

    def forward(self, x: Tensor) -> Tensor:
        aside, through = x.chunk(2, 1)
        return _shuffle(torch.cat([aside, self.branch(through)], 1))


class ShuffleDownsamplingUnit(nn.Module):
    """The unit that halves the resolution: both branches see all channels."""

    def __init__(self, channels: int, wide: int) -> None:
        super().__init__()
        half = wide // 2
        self.aside = nn.Sequential(*_depthwise(channels, 2), *_pointwise(channels, half))
        self.branch = nn.Sequential(*_pointwise(channels, half), *_depthwise(half, 2), *_pointwise(half, half))

    def forward(self, x: Tensor) -> Tensor:
        return _shuffle(torch.cat([self.aside(x), self.branch(x)], 1))


SHUFFLENET_WIDTHS = {0.5: (48, 96, 192, 1024), 1.0: (116, 232, 464, 1024)}
SHUFFLENET_UNITS = (4, 8, 4)


class ShuffleNetV2(nn.Module):
    """ShuffleNet v2: a stem of 24 channels, three stages of 4, 8 and 4 units, and a wide last convolution."""

    def __init__(self, channels: int, outputs: int, *, width: float) -> None:
        super().__init__()
        *stages, last = SHUFFLENET_WIDTHS[width]
        self.stem = nn.Conv2d(channels, 24, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(24)
        units: list[nn.Module] = []
        narrow = 24
        for wide, count in zip(stages, SHUFFLENET_UNITS, strict=True):
            units += [ShuffleDownsamplingUnit(narrow, wide), *(ShuffleUnit(wide) for _ in range(count - 1))]
            narrow = wide
        self.stages = nn.Sequential(*units)
        self.last = nn.Sequential(*_pointwise(narrow, last))
        self.head = nn.Linear(last, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.last(self.stages(functional.relu(self.norm(self.stem(x)))))
        outputs: Tensor = self.head(x.mean((2, 3)))
        return outputs


class WordMeanNet(nn.Module):
    """The mean over a text's words of their vectors, read out by a dense layer (Joulin et al., 2017, without pairs of
    words). Identifier 0 is no word.
    """

    def __init__(self, vocabulary: int, width: int, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        present = (x != 0).to(self.head.weight.dtype).unsqueeze(-1)
        vectors = self.embedding(x) * present
        outputs: Tensor = self.head(vectors.sum(1) / present.sum(1).clamp_min(1))
        return outputs


class LstmNet(nn.Module):
    """An LSTM over features, or over embedded tokens; a dense layer reads its last hidden state."""

    def __init__(self, features: int | None, vocabulary: int | None, hidden: int, layers: int, outputs: int) -> None:
        super().__init__()
        self.embedding = None if vocabulary is None else nn.Embedding(vocabulary, hidden)
        self.lstm = nn.LSTM(features or hidden, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        series = x if self.embedding is None else self.embedding(x)
        _, (state, _) = self.lstm(series)
        outputs: Tensor = self.head(state[-1])
        return outputs
