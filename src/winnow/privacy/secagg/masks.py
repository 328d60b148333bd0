"""Masks: the keystream of AES-256 in counter mode under a seed that is used once, read as words of a group."""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from winnow.privacy.secagg.modular_vectors import ModularVector, VectorGroup

SEED_BYTES = 32
CHUNK = 1 << 17
"""Bytes of keystream made at a time: they stay in the processor's cache, and a mask is never in memory as a whole."""

_NOTHING = memoryview(bytes(CHUNK))
_COUNTER = bytes(16)
"""Every seed serves one stream, so the counter may begin at zero."""


def add_mask(total: ModularVector, seed: bytes, space: VectorGroup, *, sign: int) -> None:
    """total ← total ± the seed's mask, not yet reduced."""
    stream = Cipher(algorithms.AES256(seed), modes.CTR(_COUNTER)).encryptor()
    fresh = memoryview(bytearray(CHUNK))
    combine = np.add if sign > 0 else np.subtract
    for words, stretch in zip(total, space.stretches, strict=True):
        mask = np.frombuffer(fresh, stretch.dtype)
        for first in range(0, stretch.count, len(mask)):
            part = words[first : first + len(mask)]
            stream.update_into(_NOTHING[: part.nbytes], fresh)
            combine(part, mask[: len(part)], out=part)


def expand_mask(seed: bytes, space: VectorGroup) -> ModularVector:
    """The mask itself."""
    mask = space.zeros()
    add_mask(mask, seed, space, sign=1)
    return space.reduce(mask)
