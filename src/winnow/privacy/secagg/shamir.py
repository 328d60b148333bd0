"""Secret sharing (Shamir, 1979): any t holders can reconstruct a secret, and fewer learn nothing about it.

A secret of 32 bytes is nine numbers of up to 30 bits, each the constant term of a random polynomial of degree t − 1
over the integers modulo the prime 2^31 − 1. Holder x has the polynomials' values at x. Products of two such numbers fit
into 64 bits, so all holders' shares are computed at once.
"""

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from winnow.privacy.secagg.errors import ProtocolError

PRIME = np.uint64((1 << 31) - 1)
SECRET_BYTES = 32
LIMB_BITS = 30
LIMBS = -(-8 * SECRET_BYTES // LIMB_BITS)
SHARE_BYTES = 4 * LIMBS

FieldElements = NDArray[np.uint64]


def split(secret: bytes, holders: Sequence[int], threshold: int) -> dict[int, bytes]:
    """A share for each of these holders, who are numbered from 0."""
    if not 1 <= threshold <= len(holders):
        raise ProtocolError(f"{len(holders)} holders cannot share a secret that takes {threshold} of them")
    points = _points(holders)
    values = np.zeros((len(points), LIMBS), np.uint64)
    for coefficients in _random(threshold - 1):  # Horner's rule, from the highest power down
        values = (values * points[:, None] + coefficients) % PRIME
    values = (values * points[:, None] + _limbs(secret)) % PRIME
    rows = values.astype("<u4")
    return {holder: rows[i].tobytes() for i, holder in enumerate(holders)}


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Reconstruct the secret from the first t shares."""
    if len(shares) < threshold:
        raise ProtocolError(f"{len(shares)} shares are too few, {threshold} are needed")
    holders = sorted(shares)[:threshold]
    values = np.stack([_read(shares[holder]) for holder in holders])
    weights = _at_zero(tuple(holders))
    limbs = (weights[:, None] * values % PRIME).sum(0) % PRIME
    if (limbs >> np.uint64(LIMB_BITS)).any():
        raise ProtocolError("the shares do not belong to one secret")
    number = sum(int(limb) << (LIMB_BITS * i) for i, limb in enumerate(limbs))
    if number >> (8 * SECRET_BYTES):
        raise ProtocolError("the shares do not belong to one secret")
    return number.to_bytes(SECRET_BYTES, "little")


def _points(holders: Sequence[int]) -> FieldElements:
    """Where the polynomials are evaluated: at the holder's number plus one, since the secret is at zero."""
    points = np.asarray(holders, np.int64) + 1
    if len(np.unique(points)) != len(points) or points.min() < 1 or points.max() >= int(PRIME):
        raise ProtocolError("holder numbers must be unique and not negative")
    return points.astype(np.uint64)


def _limbs(secret: bytes) -> FieldElements:
    if len(secret) != SECRET_BYTES:
        raise ProtocolError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    number = int.from_bytes(secret, "little")
    return np.array([number >> (LIMB_BITS * i) & ((1 << LIMB_BITS) - 1) for i in range(LIMBS)], np.uint64)


def _random(rows: int) -> FieldElements:
    """Uniform field elements; a draw that equals the prime is repeated."""
    numbers = np.frombuffer(os.urandom(4 * rows * LIMBS), "<u4").astype(np.uint64) & PRIME
    while (beyond := numbers == PRIME).any():
        again = np.frombuffer(os.urandom(4 * int(beyond.sum())), "<u4")
        numbers[beyond] = again.astype(np.uint64) & PRIME
    return numbers.reshape(rows, LIMBS)


def _read(share: bytes) -> FieldElements:
    if len(share) != SHARE_BYTES:
        raise ProtocolError(f"a share has {SHARE_BYTES} bytes, not {len(share)}")
    values = np.frombuffer(share, "<u4").astype(np.uint64)
    if (values >= PRIME).any():
        raise ProtocolError("a share has a value outside the field")
    return values


@lru_cache(maxsize=256)
def _at_zero(holders: tuple[int, ...]) -> FieldElements:
    """The weights of Lagrange interpolation at zero, Π_{j≠i} x_j / (x_j − x_i); often the same for many secrets."""
    points = _points(holders)
    above, below = np.ones_like(points), np.ones_like(points)
    for j, point in enumerate(points):
        others = np.arange(len(points)) != j
        above[others] = above[others] * point % PRIME
        below[others] = below[others] * ((point + PRIME - points[others]) % PRIME) % PRIME
    inverses = np.array([pow(int(each), int(PRIME) - 2, int(PRIME)) for each in below], np.uint64)
    return above * inverses % PRIME
