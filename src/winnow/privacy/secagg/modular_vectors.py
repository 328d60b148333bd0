"""Vectors over the integers modulo 2^p, and how they are packed for the wire.

A vector is made of stretches, each with a p of its own: coarse words for weights, fine ones for what must be exact. In
memory a word has the next size that a machine adds quickly (8, 16, 32 or 64 bits). Such sums are right modulo 2^p
whatever happens above, so they are reduced once, at the end. On the wire a word has p bits and no more.
"""

from collections.abc import Iterable, Sequence
from math import gcd
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from winnow.privacy.secagg.errors import ProtocolError

Words: TypeAlias = NDArray[np.unsignedinteger]
ModularVector: TypeAlias = list[Words]
"""One array of words a stretch."""

MAX_WORD_BITS = 64
LANE_BITS = 64
"""Bits are packed into lanes of this width."""


class Segment(Struct, frozen=True):
    """So many words modulo 2^bits."""

    count: int
    bits: int

    @property
    def dtype(self) -> "np.dtype[np.unsignedinteger]":
        return np.dtype(f"<u{_word_bytes(self.bits)}")

    @property
    def top(self) -> int:
        """2^bits − 1, which is also the mask that reduces a word."""
        return (1 << self.bits) - 1

    @property
    def packed_bytes(self) -> int:
        return (self.count * self.bits + 7) // 8


class VectorGroup(Struct, frozen=True):
    """The group that a vector lies in."""

    stretches: tuple[Segment, ...]

    def __post_init__(self) -> None:
        for stretch in self.stretches:
            if not 1 <= stretch.bits <= MAX_WORD_BITS or stretch.count < 0:
                raise ProtocolError(f"words of {stretch.bits} bits are not between 1 and {MAX_WORD_BITS} bits long")

    @property
    def packed_bytes(self) -> int:
        """What a vector weighs on the wire."""
        return sum(stretch.packed_bytes for stretch in self.stretches)

    def zeros(self) -> ModularVector:
        return [np.zeros(stretch.count, stretch.dtype) for stretch in self.stretches]

    def add(self, total: ModularVector, more: ModularVector) -> None:
        """total ← total + more, not yet reduced."""
        for words, added in zip(total, more, strict=True):
            np.add(words, added, out=words)

    def subtract(self, total: ModularVector, less: ModularVector) -> None:
        for words, taken in zip(total, less, strict=True):
            np.subtract(words, taken, out=words)

    def reduce(self, total: ModularVector) -> ModularVector:
        """The vector with every word in [0, 2^p), in place."""
        for words, stretch in zip(total, self.stretches, strict=True):
            np.bitwise_and(words, words.dtype.type(stretch.top), out=words)
        return total

    def check(self, vector: ModularVector) -> None:
        """Refuse what is no vector of this group."""
        if len(vector) != len(self.stretches):
            raise ProtocolError(f"the vector has {len(vector)} stretches, not {len(self.stretches)}")
        for words, stretch in zip(vector, self.stretches, strict=True):
            if words.shape != (stretch.count,):
                raise ProtocolError(f"a stretch of the vector has shape {words.shape}, not ({stretch.count},)")
            if words.dtype != stretch.dtype or (words.size and int(words.max()) > stretch.top):
                raise ProtocolError(f"the vector has words outside the group modulo 2^{stretch.bits}")

    def pack(self, vector: ModularVector) -> bytes:
        """The vector's words side by side, p bits each; every stretch begins with a whole byte."""
        self.check(vector)
        pairs = zip(vector, self.stretches, strict=True)
        return b"".join(pack_words(words, stretch) for words, stretch in pairs)

    def unpack(self, data: bytes) -> ModularVector:
        """What `pack` made into these bytes; anything else is refused."""
        if len(data) != self.packed_bytes:
            raise ProtocolError(f"the vector has {len(data)} bytes, not {self.packed_bytes}")
        vector, at = [], 0
        for stretch in self.stretches:
            vector.append(unpack_words(data[at : at + stretch.packed_bytes], stretch))
            at += stretch.packed_bytes
        return vector


def pack_words(words: Words, stretch: Segment) -> bytes:
    """p bits a word, the lowest first."""
    if stretch.bits == 8 * stretch.dtype.itemsize:
        return words.tobytes()
    period = LANE_BITS // gcd(LANE_BITS, stretch.bits)
    padded = np.pad(words, (0, -stretch.count % period))
    places = padded.reshape(-1, period).T.astype(np.uint64, order="C")
    lanes = np.zeros((period * stretch.bits // LANE_BITS, places.shape[1]), "<u8")
    for i, lane, shift in _places(period, stretch.bits):
        lanes[lane] |= places[i] << np.uint64(shift)
        if shift + stretch.bits > LANE_BITS:
            lanes[lane + 1] |= places[i] >> np.uint64(LANE_BITS - shift)
    return lanes.T.tobytes()[: stretch.packed_bytes]


def unpack_words(data: bytes, stretch: Segment) -> Words:
    """Words of p bits; the bits that fill up the last byte must be zero."""
    if stretch.bits == 8 * stretch.dtype.itemsize:
        return np.frombuffer(data, stretch.dtype).copy()
    used = stretch.count * stretch.bits % 8
    if used and data[-1] >> used:
        raise ProtocolError(f"the vector has words outside the group modulo 2^{stretch.bits}")
    period = LANE_BITS // gcd(LANE_BITS, stretch.bits)
    columns = period * stretch.bits // LANE_BITS
    filled = data + bytes(-len(data) % (8 * columns))
    lanes = np.frombuffer(filled, "<u8").reshape(-1, columns).T.copy()
    del filled  # a vector less in memory
    places = np.empty((period, lanes.shape[1]), stretch.dtype)
    top = np.uint64(stretch.top)
    for i, lane, shift in _places(period, stretch.bits):
        words = lanes[lane] >> np.uint64(shift)
        if shift + stretch.bits > LANE_BITS:
            words |= lanes[lane + 1] << np.uint64(LANE_BITS - shift)
        places[i] = words & top
    return places.T.reshape(-1)[: stretch.count]


def _places(period: int, bits: int) -> Iterable[tuple[int, int, int]]:
    """Where each word of a period begins: its lane, and the bit in it.

    Words of the same place are handled together. They lie side by side in memory meanwhile: that is twice as fast.
    """
    return ((i, i * bits // LANE_BITS, i * bits % LANE_BITS) for i in range(period))


def _word_bytes(bits: int) -> int:
    return next(size for size in (1, 2, 4, 8) if bits <= 8 * size)


def vector_group(lengths: Sequence[tuple[int, int]]) -> VectorGroup:
    """The group with these (count, bits)."""
    return VectorGroup(tuple(Segment(count, bits) for count, bits in lengths))
