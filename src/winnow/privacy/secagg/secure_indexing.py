"""Secure indexing (algorithm 1 of the paper): out of many clients' assignments come histograms, and nothing else.

It runs where the masks' seeds are, and so sees every client's assignments, which the server does not. Pairwise masks
have no such place: they cancel in sums only, and a histogram of assignments is no sum of them.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.masks import add_mask
from winnow.privacy.secagg.modular_vectors import VectorGroup

Histogram = NDArray[np.uint32]

MAX_CODEWORD_BITS = 8
"""Of a codeword's number."""


def assignment_group(space: VectorGroup, indexed: int) -> VectorGroup:
    """The part of a group that holds assignments: its first stretches."""
    codes = space.stretches[:indexed]
    if any(stretch.bits > MAX_CODEWORD_BITS for stretch in codes):
        raise ProtocolError(f"numbers of codewords have at most {MAX_CODEWORD_BITS} bits")
    return VectorGroup(codes)


def histograms(
    masked: Mapping[int, bytes], seeds: Mapping[int, bytes], space: VectorGroup, indexed: int
) -> list[Histogram]:
    """H_m[r] = the number of clients whose block m has codeword r, [blocks, 2^bits], for each of the first stretches.

    Each client counts once: what it counts with is in its update already, before codewords are chosen. Were weights
    added up here, they would tell who chose what, as weights are known to the server and seldom alike.
    """
    codes = assignment_group(space, indexed)
    counts = [np.zeros((stretch.count, 1 << stretch.bits), np.uint32) for stretch in codes.stretches]
    for client, packed in masked.items():
        words = codes.unpack(packed)
        add_mask(words, seeds[client], codes, sign=-1)
        for histogram, assigned in zip(counts, codes.reduce(words), strict=True):
            histogram[np.arange(len(assigned)), assigned] += 1
    return counts


def assignments_digest(packed: bytes, space: VectorGroup, indexed: int) -> bytes:
    """Of a vector's assignments under their mask; nothing, if it has none."""
    return hashlib.sha256(assignments(packed, space, indexed)).digest() if indexed else b""


def assignments(packed: bytes, space: VectorGroup, indexed: int) -> bytes:
    """The first of a packed vector; every stretch begins with a whole byte."""
    return packed[: assignment_group(space, indexed).packed_bytes]


def write_histograms(counts: Sequence[Histogram]) -> bytes:
    return b"".join(each.astype("<u4").tobytes() for each in counts)


def read_histograms(data: bytes, space: VectorGroup, indexed: int) -> list[Histogram]:
    """What `write_histograms` wrote; anything else is refused."""
    codes = assignment_group(space, indexed)
    needed = 4 * sum(stretch.count << stretch.bits for stretch in codes.stretches)
    if len(data) != needed:
        raise ProtocolError(f"the histograms have {len(data)} bytes, not {needed}")
    return list(_each(np.frombuffer(data, "<u4"), codes))


def _each(numbers: NDArray[np.uint32], space: VectorGroup) -> Iterator[Histogram]:
    at = 0
    for stretch in space.stretches:
        size = stretch.count << stretch.bits
        yield numbers[at : at + size].reshape(stretch.count, 1 << stretch.bits)
        at += size
