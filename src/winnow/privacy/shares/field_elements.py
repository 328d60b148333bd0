"""Elements of a prime field as bytes and back, whole arrays at a time, and elements that nobody can foresee.

Fields have the largest prime p = 2ᵇ − c with b a multiple of 8, so that b random bits modulo p are uniform but for a
share of c/2ᵇ, and the length of a message depends on nothing but the number of entries.
"""

import os
from hashlib import shake_128
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]
"""Whole numbers of any size (dtype object)."""

LIMB_BYTES, LIMB_BITS = 8, 64
LIMB_MASK = (1 << LIMB_BITS) - 1


def to_bytes(values: Values, width: int) -> bytes:
    """Numbers from 0 up to but not 256**width, each in `width` bytes."""
    limbs = -(-width // LIMB_BYTES)
    columns = np.empty((len(values), limbs), "<u8")
    for limb in range(limbs):
        columns[:, limb] = (values >> LIMB_BITS * limb) & LIMB_MASK
    return columns.view(np.uint8)[:, :width].tobytes()


def from_bytes(data: bytes, width: int) -> Values:
    """The numbers; the data's length is a multiple of `width`."""
    count, limbs = len(data) // width, -(-width // LIMB_BYTES)
    columns = np.zeros((count, limbs * LIMB_BYTES), np.uint8)
    columns[:, :width] = np.frombuffer(data, np.uint8).reshape(count, width)
    words = columns.view("<u8")
    values: Values = words[:, 0].astype(object)
    for limb in range(1, limbs):
        values = values + (words[:, limb].astype(object) << LIMB_BITS * limb)
    return values


def random_elements(modulus: int, count: int) -> Values:
    """Uniform elements, out of the operating system's randomness."""
    width = width_of(modulus)
    return from_bytes(os.urandom(width * count), width) % modulus


def width_of(modulus: int) -> int:
    return (modulus.bit_length() + 7) // 8


class PseudorandomFunction:
    """Numbers below `bound`, a power of two or a field's p, that follow from a key and an input."""

    def __init__(self, key: bytes, bound: int) -> None:
        self._key, self._bound = key, bound
        self._width = max(1, ((bound - 1).bit_length() + 7) // 8)

    def __call__(self, name: bytes, shape: tuple[int, ...]) -> Values:
        """An array of this shape."""
        data = shake_128(self._key + name).digest(prod(shape) * self._width)
        return (from_bytes(data, self._width) % self._bound).reshape(shape)


def np_random_split(field: Any, secrets: Any, threshold: int, parties: int) -> Values:
    """Shamir shares of each secret, a row a party: the values at 1, 2, … of a random polynomial of degree t."""
    values = np.asarray(getattr(secrets, "value", secrets), dtype=object)
    coefficients = [values, *random_elements(field.modulus, threshold * len(values)).reshape(threshold, -1)]
    rows = []
    for x in range(1, parties + 1):
        row = coefficients[-1]
        for lower in reversed(coefficients[:-1]):
            row = row * x + lower
        rows.append(row % field.modulus)
    return np.stack(rows)
