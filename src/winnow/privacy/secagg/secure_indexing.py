"""Secure indexing (algorithm 1 of the paper): it reveals histograms of many clients' assignments, and nothing else.

It runs at the mask keeper, which has the seeds and so sees every client's assignments; the server does not. It is not
possible with pairwise masks: they cancel only in sums, and a histogram of assignments is not a sum of them.
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
"""Bits of a codeword's index."""


def assignment_group(group: VectorGroup, indexed: int) -> VectorGroup:
    """The part of a group with the assignments: its first segments."""
    codes = group.segments[:indexed]
    if any(segment.bits > MAX_CODEWORD_BITS for segment in codes):
        raise ProtocolError(f"numbers of codewords have at most {MAX_CODEWORD_BITS} bits")
    return VectorGroup(codes)


def histograms(
    masked: Mapping[int, bytes], seeds: Mapping[int, bytes], group: VectorGroup, indexed: int
) -> list[Histogram]:
    """H_m[r] = the number of clients whose block m has codeword r, [blocks, 2^bits], for each of the first segments.

    Each client counts once: its update is weighted before codewords are chosen. Sums of weights would reveal who chose
    what, since the server knows the weights and they usually differ.
    """
    codes = assignment_group(group, indexed)
    counts = [np.zeros((segment.count, 1 << segment.bits), np.uint32) for segment in codes.segments]
    for client, packed in masked.items():
        words = codes.unpack(packed)
        add_mask(words, seeds[client], codes, sign=-1)
        for histogram, assigned in zip(counts, codes.reduce(words), strict=True):
            histogram[np.arange(len(assigned)), assigned] += 1
    return counts


def assignments_digest(packed: bytes, group: VectorGroup, indexed: int) -> bytes:
    """Of a packed vector's masked assignments; empty if it has none."""
    return hashlib.sha256(assignments(packed, group, indexed)).digest() if indexed else b""


def assignments(packed: bytes, group: VectorGroup, indexed: int) -> bytes:
    """The first bytes of a packed vector; every segment starts at a byte boundary."""
    return packed[: assignment_group(group, indexed).packed_bytes]


def write_histograms(counts: Sequence[Histogram]) -> bytes:
    return b"".join(each.astype("<u4").tobytes() for each in counts)


def read_histograms(data: bytes, group: VectorGroup, indexed: int) -> list[Histogram]:
    """The inverse of `write_histograms`; anything else is refused."""
    codes = assignment_group(group, indexed)
    needed = 4 * sum(segment.count << segment.bits for segment in codes.segments)
    if len(data) != needed:
        raise ProtocolError(f"the histograms have {len(data)} bytes, not {needed}")
    return list(_each(np.frombuffer(data, "<u4"), codes))


def _each(numbers: NDArray[np.uint32], group: VectorGroup) -> Iterator[Histogram]:
    at = 0
    for segment in group.segments:
        size = segment.count << segment.bits
        yield numbers[at : at + size].reshape(segment.count, 1 << segment.bits)
        at += size
