"""Random numbers of single samples, drawn on whatever device the samples are on.

A number depends on its sample's key and on how many were drawn before, and on nothing else: not on the device, nor on
who else is in the cohort. So augmentation repeats in every way of execution, and takes no detour over the host.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from winnow.core import derive

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
_MANTISSA = 24


class SampleDraws:
    """Draws for N samples, each from a stream of its own: the outputs of SplitMix64 (Steele et al., 2014) at the
    sample's key plus a counter.
    """

    def __init__(self, keys: Tensor) -> None:
        self._keys, self._drawn = keys, 0

    @classmethod
    def of_clients(cls, clients: Tensor, samples: int, steps: range) -> "SampleDraws":
        """For so many samples of each of K clients in S steps, [S·K·samples]; `clients` are their keys, int64 [K]."""
        step, place = (torch.arange(*ends, device=clients.device) for ends in ((steps.start, steps.stop), (0, samples)))
        of_step = _mixed(clients + (step.unsqueeze(1) + 1) * _GOLDEN)
        return cls(_mixed(of_step.unsqueeze(2) + (place + 1) * _GOLDEN).flatten())

    def __len__(self) -> int:
        return len(self._keys)

    def uniform(self, count: int = 1) -> Tensor:
        """[N, count] numbers in [0, 1), of 24 bits each; every call gives others."""
        number = torch.arange(self._drawn + 1, self._drawn + count + 1, device=self._keys.device)
        self._drawn += count
        bits = _mixed(self._keys.unsqueeze(1) + number * _GOLDEN)
        return _shifted(bits, 64 - _MANTISSA).float() / (1 << _MANTISSA)

    def normal(self, count: int = 1) -> Tensor:
        """[N, count] standard normal numbers (Box and Muller)."""
        radius, angle = self.uniform(count), self.uniform(count)
        return (-2 * (1 - radius).log()).sqrt() * (2 * math.pi * angle).cos()


def client_keys(seed: int, clients: Sequence[int], *names: str | int) -> Tensor:
    """A key for each client, [K], from the run's seed and names such as the round."""
    return torch.tensor([_signed(derive(seed, *names, int(client))) for client in clients], dtype=torch.int64)


def _signed(number: int) -> int:
    """The last 64 bits of a number, as torch's int64 has them."""
    return (number + 2**63) % 2**64 - 2**63


def _mixed(words: Tensor) -> Tensor:
    """SplitMix64's finaliser. Products of int64 wrap around, as those of unsigned words do."""
    words = _shifted(words, 30).bitwise_xor_(words).mul_(_FIRST)
    words = _shifted(words, 27).bitwise_xor_(words).mul_(_SECOND)
    return _shifted(words, 31).bitwise_xor_(words)


def _shifted(words: Tensor, by: int) -> Tensor:
    """To the right, with noughts from the left; torch would repeat the sign."""
    return (words >> by).bitwise_and_((1 << (64 - by)) - 1)
