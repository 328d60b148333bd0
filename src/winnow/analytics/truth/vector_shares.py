"""Shamir shares of whole vectors: any t holders can reconstruct them, and fewer learn nothing (Shamir, 1979).

Entries are numbers modulo the prime P = 2^31 − 1. Holder h has the value at h + 1 of a random polynomial of degree
t − 1 for each entry; all shares together are one product of matrices. Reals travel in fixed point.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import floor, log2
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.core import ConfigError
from winnow.privacy.shares.errors import SharesError

P = (1 << 31) - 1
LARGEST = 1 << 30
"""Sums are below it in size, so that their sign survives."""
MIN_FRACTION_BITS = 12
EXACT_TERMS = 64
"""Products of 31 and 16 bits that float64 adds without rounding."""
ENTRY_BYTES = 4

Elements: TypeAlias = NDArray[np.uint32]


def bits_behind_point(participants: int, bound: float) -> int:
    """The bits behind the point, if so many participants each add numbers up to `bound`."""
    bits = floor(log2((LARGEST - participants) / (participants * bound)))
    if bits < MIN_FRACTION_BITS:
        raise ConfigError(f"{participants:,} participants are too many for sums modulo 2^31 − 1; split them")
    return bits


def to_fixed_point(values: NDArray[np.float64], bits: int) -> Elements:
    return in_field(np.rint(values * (1 << bits)).astype(np.int64))


def from_fixed_point(elements: Elements, bits: int) -> NDArray[np.float64]:
    signed = elements.astype(np.int64)
    return np.where(signed > LARGEST, signed - P, signed) / (1 << bits)


def split_vector(secret: Elements, holders: Sequence[int], threshold: int) -> Elements:
    """A row of shares for each holder."""
    if not 1 <= threshold <= len(holders):
        raise SharesError(f"{len(holders)} holders cannot share a secret that takes {threshold} of them")
    coefficients = np.concatenate([secret[None], _random((threshold - 1, len(secret)))])
    return _product(_powers(tuple(holders), threshold), coefficients)


def join_vector(shares: Mapping[int, Elements], threshold: int) -> Elements:
    """The secret. All shares must lie on one polynomial: a wrong one shows wherever there are more than t."""
    if len(shares) < threshold:
        raise SharesError(f"{len(shares)} shares are too few; {threshold} are needed")
    used, spare = np.split(np.array(sorted(shares)), [threshold])
    found = _product(
        _interpolation(tuple(used.tolist()), (-1, *spare.tolist())), np.stack([shares[holder] for holder in used])
    )
    if any((shares[holder] != expected).any() for holder, expected in zip(spare, found[1:], strict=True)):
        raise SharesError("the holders' sums do not fit together: one of them is wrong")
    secret: Elements = found[0]
    return secret


def encode_elements(elements: Elements) -> bytes:
    return elements.astype("<u4").tobytes()


def decode_elements(data: bytes, length: int) -> Elements:
    """As many elements of the field as there should be."""
    if len(data) != ENTRY_BYTES * length:
        raise SharesError(f"{len(data)} bytes of shares where {ENTRY_BYTES * length} were expected")
    elements = np.frombuffer(data, "<u4")
    if (elements >= P).any():
        raise SharesError("a share is not an element of the field")
    return elements.astype(np.uint32, copy=False)


def in_field(numbers: NDArray[np.int64]) -> Elements:
    """The same modulo P."""
    return (numbers % P).astype(np.uint32)


def _random(shape: tuple[int, int]) -> Elements:
    """Uniform elements, out of the operating system's randomness; a draw that equals P is repeated."""
    drawn = np.frombuffer(bytearray(os.urandom(ENTRY_BYTES * shape[0] * shape[1])), np.uint32) & np.uint32(P)
    while (beyond := drawn == P).any():
        drawn[beyond] = np.frombuffer(os.urandom(ENTRY_BYTES * int(beyond.sum())), np.uint32) & np.uint32(P)
    return drawn.reshape(shape)


def _product(matrix: NDArray[np.float64], vectors: Elements) -> Elements:
    """The matrix times the vectors modulo P, exact: the vectors go in halves of 16 bits."""
    result = np.zeros((len(matrix), vectors.shape[1]), np.int64)
    for start in range(0, len(vectors), EXACT_TERMS):
        left, right = matrix[:, start : start + EXACT_TERMS], vectors[start : start + EXACT_TERMS]
        high = (left @ (right >> np.uint32(16)).astype(np.float64)).astype(np.int64)
        low = (left @ (right & np.uint32(0xFFFF)).astype(np.float64)).astype(np.int64)
        result = _folded((_folded(high) << 16) + low + result)
    result = _folded(result)
    return np.where(result >= P, result - P, result).astype(np.uint32)


def _folded(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same modulo P, and shorter: 2^31 is 1 there. What is below 2^54 comes out below 2^32."""
    return (numbers & P) + (numbers >> 31)


@lru_cache(maxsize=16)
def _powers(holders: tuple[int, ...], threshold: int) -> NDArray[np.float64]:
    """(h + 1)^e modulo P for each holder h and e < t."""
    return np.array([[pow(holder + 1, power, P) for power in range(threshold)] for holder in holders], np.float64)


@lru_cache(maxsize=64)
def _interpolation(known: tuple[int, ...], wanted: tuple[int, ...]) -> NDArray[np.float64]:
    """Lagrange's weights: a polynomial's values at the wanted holders from those at the known; −1 is the secret."""
    inverse = [pow(_times(i - j for j in known if j != i), -1, P) for i in known]
    rows = []
    for at in wanted:
        ahead = [1]
        for j in known:
            ahead.append(ahead[-1] * (at - j) % P)
        behind, row = 1, [0] * len(known)
        for place in reversed(range(len(known))):
            row[place] = ahead[place] * behind * inverse[place] % P
            behind = behind * (at - known[place]) % P
        rows.append(row)
    return np.array(rows, np.float64)


def _times(factors: Iterable[int]) -> int:
    product = 1
    for factor in factors:
        product = product * factor % P
    return product
