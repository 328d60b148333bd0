"""One seed, named streams.

Every random decision asks for a stream by name (`stream(seed, "batches", round, client)`), so changing one part of an
experiment never shifts another part's numbers, and a resumed run needs no stored generator state.
"""

import hashlib
from typing import Protocol

import numpy as np


def derive(seed: int, *names: str | int) -> int:
    """A 256-bit integer that depends on the seed and the names alone."""
    key = "\x1f".join(f"{type(name).__name__}:{name}" for name in (seed, *names))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=32).digest(), "little")


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """The random generator of one named decision."""
    return np.random.Generator(np.random.PCG64(derive(seed, *names)))


class Randomness(Protocol):
    """A federation's source of randomness that protects somebody: noise, rounding, whom a round draws.

    In a simulation, where there is nobody to protect, it is `stream`, which repeats. In a deployment nobody can foresee
    it, whoever knows the seed and the names.
    """

    def __call__(self, seed: int, *names: str | int) -> np.random.Generator: ...
