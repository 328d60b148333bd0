"""Vectors over the integers modulo 2^p, and how they are packed for the wire.

A vector consists of segments, each with its own p: few bits for model weights, more for values that must be exact. In
memory a word has the next machine size (8, 16, 32 or 64 bits). Sums are right modulo 2^p whatever overflows above, so
they are reduced once, at the end. On the wire a word has p bits.
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
"""One array of words per segment."""

MAX_WORD_BITS = 64
LANE_BITS = 64
"""Bits are packed into lanes of this width."""


class Segment(Struct, frozen=True):
    """`count` words modulo 2^bits."""

    count: int
    bits: int

    @property
    def dtype(self) -> "np.dtype[np.unsignedinteger]":
        return np.dtype(f"<u{_word_bytes(self.bits)}")

    @property
    def top(self) -> int:
        """2^bits − 1, which is also the bit mask that reduces a word."""
        return (1 << self.bits) - 1

    @property
    def packed_bytes(self) -> int:
        return (self.count * self.bits + 7) // 8


class VectorGroup(Struct, frozen=True):
    """The group of vectors with these segments, under addition."""

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        for segment in self.segments:
            if not 1 <= segment.bits <= MAX_WORD_BITS or segment.count < 0:
                raise ProtocolError(f"words of {segment.bits} bits are not between 1 and {MAX_WORD_BITS} bits long")

    @property
    def packed_bytes(self) -> int:
        """Bytes of a vector on the wire."""
        return sum(segment.packed_bytes for segment in self.segments)

    def zeros(self) -> ModularVector:
        return [np.zeros(segment.count, segment.dtype) for segment in self.segments]

    def add(self, total: ModularVector, more: ModularVector) -> None:
        """total ← total + more, not yet reduced."""
        for words, added in zip(total, more, strict=True):
            np.add(words, added, out=words)

    def subtract(self, total: ModularVector, less: ModularVector) -> None:
        for words, taken in zip(total, less, strict=True):
            np.subtract(words, taken, out=words)

    def reduce(self, total: ModularVector) -> ModularVector:
        """The vector with every word in [0, 2^p), in place."""
        for words, segment in zip(total, self.segments, strict=True):
            np.bitwise_and(words, words.dtype.type(segment.top), out=words)
        return total

    def check(self, vector: ModularVector) -> None:
        """Refuse a vector that is not in this group."""
        if len(vector) != len(self.segments):
            raise ProtocolError(f"the vector has {len(vector)} segments, not {len(self.segments)}")
        for words, segment in zip(vector, self.segments, strict=True):
            if words.shape != (segment.count,):
                raise ProtocolError(f"a segment of the vector has shape {words.shape}, not ({segment.count},)")
            if words.dtype != segment.dtype or (words.size and int(words.max()) > segment.top):
                raise ProtocolError(f"the vector has words outside the group modulo 2^{segment.bits}")

    def pack(self, vector: ModularVector) -> bytes:
        """The vector's words side by side, p bits each; every segment starts at a byte boundary."""
        self.check(vector)
        pairs = zip(vector, self.segments, strict=True)
        return b"".join(pack_words(words, segment) for words, segment in pairs)

    def unpack(self, data: bytes) -> ModularVector:
        """The inverse of `pack`; anything else is refused."""
        if len(data) != self.packed_bytes:
            raise ProtocolError(f"the vector has {len(data)} bytes, not {self.packed_bytes}")
        vector, at = [], 0
        for segment in self.segments:
            vector.append(unpack_words(data[at : at + segment.packed_bytes], segment))
            at += segment.packed_bytes
        return vector


def pack_words(words: Words, segment: Segment) -> bytes:
    """p bits per word, the lowest first."""
    if segment.bits == 8 * segment.dtype.itemsize:
        return words.tobytes()
    period = LANE_BITS // gcd(LANE_BITS, segment.bits)
    padded = np.pad(words, (0, -segment.count % period))
    places = padded.reshape(-1, period).T.astype(np.uint64, order="C")
    lanes = np.zeros((period * segment.bits // LANE_BITS, places.shape[1]), "<u8")
    for i, lane, shift in _places(period, segment.bits):
        lanes[lane] |= places[i] << np.uint64(shift)
        if shift + segment.bits > LANE_BITS:
            lanes[lane + 1] |= places[i] >> np.uint64(LANE_BITS - shift)
    return lanes.T.tobytes()[: segment.packed_bytes]


def unpack_words(data: bytes, segment: Segment) -> Words:
    """Words of p bits; the padding of the last byte must be zero."""
    if segment.bits == 8 * segment.dtype.itemsize:
        return np.frombuffer(data, segment.dtype).copy()
    used = segment.count * segment.bits % 8
    if used and data[-1] >> used:
        raise ProtocolError(f"the vector has words outside the group modulo 2^{segment.bits}")
    period = LANE_BITS // gcd(LANE_BITS, segment.bits)
    columns = period * segment.bits // LANE_BITS
    filled = data + bytes(-len(data) % (8 * columns))
    lanes = np.frombuffer(filled, "<u8").reshape(-1, columns).T.copy()
    del filled  # a vector less in memory
    places = np.empty((period, lanes.shape[1]), segment.dtype)
    top = np.uint64(segment.top)
    for i, lane, shift in _places(period, segment.bits):
        words = lanes[lane] >> np.uint64(shift)
        if shift + segment.bits > LANE_BITS:
            words |= lanes[lane + 1] << np.uint64(LANE_BITS - shift)
        places[i] = words & top
    return places.T.reshape(-1)[: segment.count]


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
