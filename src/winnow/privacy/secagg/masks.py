"""Masks: the keystream of AES-256-CTR under a seed that is used once, read as words of a group."""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from winnow.privacy.secagg.modular_vectors import ModularVector, VectorGroup

SEED_BYTES = 32
CHUNK = 1 << 17
"""Bytes of keystream generated at a time: they stay in the processor's cache, and no whole mask is in memory."""

_NOTHING = memoryview(bytes(CHUNK))
_COUNTER = bytes(16)
"""Each seed is used for one stream, so the counter may start at zero."""


def add_mask(total: ModularVector, seed: bytes, group: VectorGroup, *, sign: int) -> None:
    """total ← total ± the seed's mask, not yet reduced."""
    stream = Cipher(algorithms.AES256(seed), modes.CTR(_COUNTER)).encryptor()
    fresh = memoryview(bytearray(CHUNK))
    combine = np.add if sign > 0 else np.subtract
    for words, segment in zip(total, group.segments, strict=True):
        mask = np.frombuffer(fresh, segment.dtype)
        for first in range(0, segment.count, len(mask)):
            part = words[first : first + len(mask)]
            stream.update_into(_NOTHING[: part.nbytes], fresh)
            combine(part, mask[: len(part)], out=part)
