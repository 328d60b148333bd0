"""Vectors under CKKS that are only ever added: their sum comes out exactly, in fixed point.

Clients round what they encrypt to whole steps. So does the sum consist of whole steps, and rounding it to them takes
off all of the scheme's noise, which depends on the secret key (Li and Micciancio, 2021): nobody is told any of it, and
what comes out does not depend on the keys.
"""

from collections.abc import Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

from winnow.core import Arrays
from winnow.privacy import ckks
from winnow.privacy.ckks import Bytes, CiphertextError, Context, EncryptedVector

DEGREE = 4096
SLOTS = DEGREE // 2
"""Numbers that one ciphertext holds."""

PRIME_BITS = (60, 49)
"""109 bits in all, the most that this degree allows at 128 bits of security. Sums need one prime; the library insists
on another, for operations that are not used here, and it makes nothing but the public key larger.
"""

SCALE = 2.0**44
STEP = 2.0**-22
"""What values are rounded to: 2.4e-7."""

CAPACITY = 2.0**14
"""No element of a sum is larger. The prime has room for twice that."""

MAX_CLIENTS = 1 << 13
"""The noise of a sum over n ciphertexts has a standard deviation of about 2^9.4·√n units of 1/SCALE, and half a step
is 2^21 of them: 36 standard deviations for the most clients.
"""

MAX_ROUNDING_ERROR = 0.25
"""No decrypted value of a sum lies farther from a whole step, in steps. Under another key, half of them do."""

CIPHERTEXT_BYTES = 65_680
KEY_BYTES = 124_800
"""What a ciphertext and a public key weigh; they vary by a few bytes."""


def make_keys() -> Context:
    """A private context, from the operating system's randomness."""
    library = ckks.library()
    context = library.context(library.SCHEME_TYPE.CKKS, DEGREE, coeff_mod_bit_sizes=list(PRIME_BITS), n_threads=1)
    context.global_scale = SCALE
    return context


def round_to_steps(values: NDArray[np.float64], members: int) -> NDArray[np.float64]:
    """The values in whole steps, cut off where so many clients with values as large could exceed the capacity: that one
    had been refused would tell that it is so large.
    """
    room = CAPACITY / members
    steps: NDArray[np.float64] = np.rint(np.clip(values, -room, room) / STEP) * STEP
    return steps


def encrypt(context: Context, values: NDArray[np.float64]) -> dict[str, Bytes]:
    """As many ciphertexts as it takes, by number; the last is filled up with zeros."""
    library, blocks = ckks.library(), ciphertext_count(len(values))
    padded = np.pad(values, (0, blocks * SLOTS - len(values))).reshape(blocks, SLOTS)
    return {
        f"{place}": ckks.as_array(library.ckks_vector(context, block.tolist()).serialize())
        for place, block in enumerate(padded)
    }


def decrypt(context: Context, parts: Arrays, count: int) -> NDArray[np.int64]:
    """How many steps each of so many sums has; takes a private context."""
    blocks = [np.array(block.decrypt()) / STEP for block in _read(context, parts, count)]
    values = np.concatenate(blocks)[:count]
    steps = np.rint(values)
    if not (np.abs(values - steps) <= MAX_ROUNDING_ERROR).all() or not (np.abs(steps) <= CAPACITY / STEP).all():
        raise CiphertextError("it is not a valid sum of encrypted updates, or it was encrypted with a different key")
    whole: NDArray[np.int64] = steps.astype(np.int64)
    return whole


def ciphertext_count(count: int) -> int:
    """How many it takes for so many numbers."""
    return ceil(count / SLOTS)


class EncryptedSum:
    """Adds vectors of so many numbers up, at the server, who can read none; it holds the sum and what has just come."""

    def __init__(self, key: Bytes, count: int) -> None:
        self._context, self._count = ckks.read_context(key), count
        self._sum: Sequence[EncryptedVector] = ()

    def add(self, parts: Arrays) -> None:
        """Add a vector; what is none is refused before anything is added."""
        blocks = _read(self._context, parts, self._count)
        if self._sum:
            for total, block in zip(self._sum, blocks, strict=True):
                total.add_(block)
        else:
            self._sum = blocks

    def parts(self) -> dict[str, Bytes]:
        return {f"{place}": ckks.as_array(block.serialize()) for place, block in enumerate(self._sum)}


def _read(context: Context, parts: Arrays, count: int) -> list[EncryptedVector]:
    if count < 1 or len(parts) != ciphertext_count(count):
        raise CiphertextError(
            f"{len(parts)} ciphertexts came for {count} numbers, and it takes {ciphertext_count(count)}"
        )
    names = [f"{place}" for place in range(len(parts))]
    if parts.keys() != {*names}:
        raise CiphertextError("the ciphertexts are not numbered from 0 without gaps")
    return [
        ckks.read_fresh(context, ckks.byte_array(parts, name), slots=SLOTS, primes=len(PRIME_BITS) - 1)
        for name in names
    ]
