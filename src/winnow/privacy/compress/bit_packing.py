"""Whole numbers as bits, without gaps, and ascending ones in about two bits more than their spacing needs."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.privacy.compress.errors import PacketError

Bytes: TypeAlias = NDArray[np.uint8]
Indices: TypeAlias = NDArray[np.int64]


def bit_width(largest: int) -> int:
    """The bits that numbers from 0 to the largest take."""
    return int(largest).bit_length()


def packed_bytes(count: int, width: int) -> int:
    return -(-count * width // 8)


def pack_bits(numbers: NDArray[np.integer], width: int) -> Bytes:
    """Numbers of so many bits each, the lowest bit first; the last byte is filled up with zeros."""
    bits = np.empty((len(numbers), width), np.uint8)
    for place in range(width):
        bits[:, place] = (numbers >> place) & 1
    return np.packbits(bits.reshape(-1), bitorder="little")


def unpack_bits(data: Bytes, count: int, width: int) -> NDArray[np.int64]:
    """So many numbers of so many bits each, and nothing else."""
    if len(data) != packed_bytes(count, width):
        raise PacketError(f"{count} numbers of {width} bits do not take {len(data)} bytes")
    bits = np.unpackbits(data, bitorder="little")
    if bits[count * width :].any():
        raise PacketError("the bits after the last number are not zero")
    table = bits[: count * width].reshape(count, width)
    numbers = np.zeros(count, np.int64)
    for place in range(width):
        numbers |= table[:, place].astype(np.int64) << place
    return numbers


def indices_bytes(kept: int, count: int) -> int:
    """What `write_indices` takes for so many places out of so many."""
    low = _low_bits(kept, count)
    return packed_bytes(kept, low) + packed_bytes(_unary_bits(kept, count, low), 1)


def write_indices(places: Indices, count: int) -> Bytes:
    """Ascending places below `count`, by Elias and Fano: low bits as they are, high ones by a mark after each step."""
    kept = len(places)
    low = _low_bits(kept, count)
    marks = np.zeros(_unary_bits(kept, count, low), np.uint8)
    marks[(places >> low) + np.arange(kept)] = 1
    return np.concatenate([pack_bits(places & ((1 << low) - 1), low), np.packbits(marks, bitorder="little")])


def read_indices(data: Bytes, kept: int, count: int) -> Indices:
    """So many ascending places below `count`."""
    if len(data) != indices_bytes(kept, count):
        raise PacketError(f"{kept} places of {count} do not take {len(data)} bytes")
    low = _low_bits(kept, count)
    end = packed_bytes(kept, low)
    marks = np.flatnonzero(unpack_bits(data[end:], _unary_bits(kept, count, low), 1))
    if len(marks) != kept:
        raise PacketError(f"found {len(marks)} indices, expected {kept}")
    places = ((marks - np.arange(kept)) << low) | unpack_bits(data[:end], kept, low)
    if (np.diff(places) <= 0).any() or (places >= count).any():
        raise PacketError("indices are not ascending, or are out of range")
    return places


def _low_bits(kept: int, count: int) -> int:
    return max(0, (count // kept).bit_length() - 1) if kept else 0


def _unary_bits(kept: int, count: int, low: int) -> int:
    return kept + (max(0, count - 1) >> low) + 1
