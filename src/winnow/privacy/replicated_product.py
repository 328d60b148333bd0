"""Products of secret numbers among three parties, of whom no two pool what they see (Araki, Furukawa, Lindell, Nof and
Ohara, 2016, section 2).

A number is x = x₀ + x₁ + x₂ modulo 2⁶⁴, and party i holds parts i and i + 1. Then xy is the sum of what each party can
multiply alone, zᵢ = xᵢyᵢ + xᵢyᵢ₊₁ + xᵢ₊₁yᵢ, plus a part of zero from keys that two parties each have in common: without
it, zᵢ would tell of the factors. Sums of products need no further message, whatever their number.
"""

from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

Words = NDArray[np.uint64]
"""Numbers modulo 2⁶⁴; negative ones as their complement to it."""

PARTIES = 3
SEED_BYTES = 32
WORD_BYTES = 8
SHIFTS = (0, 22, 43)
"""Where the limbs of a word begin."""
LIMBS = len(SHIFTS)
BLOCK = 512
"""Rows that are multiplied at a time: 2⁹ products of 22 bits each stay below 2⁵³."""


@dataclass(frozen=True)
class ReplicatedShare:
    """What party i holds of an array: parts i and i + 1."""

    own: Words
    next: Words


def to_words(values: NDArray[np.int64]) -> Words:
    return np.ascontiguousarray(values, np.int64).view(np.uint64)


def from_words(words: Words) -> NDArray[np.int64]:
    """Signed numbers below 2⁶³ in size."""
    return np.ascontiguousarray(words, np.uint64).view(np.int64)


def keystream(seed: bytes, shape: tuple[int, ...], first: int = 0) -> Words:
    """Words of AES-256-CTR under a seed that is used for one stream, from word number `first` (an even one) on."""
    counter = (first * WORD_BYTES // 16).to_bytes(16, "big")
    cipher = Cipher(algorithms.AES256(seed), modes.CTR(counter)).encryptor()
    words = np.frombuffer(cipher.update(bytes(WORD_BYTES * int(np.prod(shape, dtype=np.int64)))), "<u8")
    return words.astype(np.uint64, copy=False).reshape(shape)


def split_input(values: Words, stream: Words) -> tuple[ReplicatedShare, Words]:
    """The share of the party whose input it is, and the words for the party after it.

    Part i is the stream, whose seed the party before it gets; part i + 1 is what is left; part i + 2 is 0.
    """
    rest = values - stream
    return ReplicatedShare(own=stream, next=rest), rest


def received_input(place: int, owner: int, words: Words) -> ReplicatedShare:
    """Another party's share of the owner's input: `words` are those that it got, or its seed's stream."""
    nothing = np.zeros_like(words)
    return ReplicatedShare(own=words, next=nothing) if place == after(owner) else ReplicatedShare(nothing, words)


def after(place: int) -> int:
    return (place + 1) % PARTIES


def before(place: int) -> int:
    return (place - 1) % PARTIES


def product_part(left: ReplicatedShare, right: ReplicatedShare) -> Words:
    """A party's part of the products, entry by entry. Add `zero_part` before anybody else sees it."""
    part: Words = left.own * (right.own + right.next) + left.next * right.own
    return part


def matrix_product_part(left: ReplicatedShare, right: ReplicatedShare) -> Words:
    """A party's part of leftᵀ·right, of matrices (n × k) and (n × b). Add `zero_part` before anybody else sees it."""
    return transposed_product(left.own, right.own + right.next) + transposed_product(left.next, right.own)


def zero_part(own_key: bytes, next_key: bytes, shape: tuple[int, ...]) -> Words:
    """αᵢ = F(kᵢ) − F(kᵢ₊₁), whose sum over the parties is 0; party i holds keys i and i + 1, for one use."""
    return keystream(own_key, shape) - keystream(next_key, shape)


def transposed_product(left: Words, right: Words) -> Words:
    """leftᵀ·right modulo 2⁶⁴, of matrices (n × k) and (n × b).

    NumPy multiplies whole numbers slowly. Words are divided into limbs of 21 or 22 bits, whose products, summed over a
    block of rows, are exact in floating point; there a library knows about caches.
    """
    total = np.zeros((left.shape[1], right.shape[1]), np.uint64)
    width = left.shape[1]
    for start in range(0, len(left), BLOCK):
        limbs = np.concatenate(_limbs(left[start : start + BLOCK]), axis=1).T.copy()
        for place, limb in enumerate(_limbs(right[start : start + BLOCK])):
            products = limbs[: (LIMBS - place) * width] @ limb
            for other in range(LIMBS - place):
                shift = np.uint64(SHIFTS[place] + SHIFTS[other])
                total += products[other * width : (other + 1) * width].astype(np.uint64) << shift
    return total


def _limbs(words: Words) -> list[NDArray[np.float64]]:
    """From the lowest."""
    ends = (*SHIFTS[1:], 64)
    return [
        ((words >> np.uint64(shift)) & np.uint64((1 << end - shift) - 1)).astype(np.float64)
        for shift, end in zip(SHIFTS, ends, strict=True)
    ]
