"""What the parties of vertical trees write to each other, and how much at a time."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from winnow.privacy.replicated_product import WORD_BYTES, Words
from winnow.privacy.shares.message_party import PeerFaultError
from winnow.privacy.shares.step_messages import MESSAGE_BYTES

LABELS, FEATURES, THIRD = range(3)
"""Places of the parties."""
T = TypeVar("T")


class BinsOf(msgspec.Struct, frozen=True, tag="bins"):
    """From the owner of features to that of labels: how many bins its columns have, and the seed of their masks."""

    bins: list[int]
    seed: bytes


class BinRows(msgspec.Struct, frozen=True, tag="rows"):
    """From the owner of features to the third party: the next rows of its bins, masked; `key` makes parts of zero."""

    width: int
    key: bytes
    words: bytes


class MaskedGradients(msgspec.Struct, frozen=True, tag="gradients"):
    """From the owner of labels to that of features: gradients by row and node, masked."""

    words: bytes


class MaskSeed(msgspec.Struct, frozen=True, tag="seed"):
    """From the owner of labels to the third party: the seed of the masks of so many columns of gradients."""

    seed: bytes
    columns: int


class SplitAsked(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Which of these rows (bits) are in bin `cut` of the column or below; those without a cell, if `missing_left`."""

    column: int
    cut: int
    missing_left: bool
    rows: bytes


class AskSplits(msgspec.Struct, frozen=True, tag="splits"):
    splits: list[SplitAsked]


class EndOfStep(msgspec.Struct, frozen=True, tag="end"):
    """From the owner of labels to both others: what everybody learns."""

    opened: list[int]


ToFeatures = MaskedGradients | AskSplits | EndOfStep
ToThird = MaskSeed | EndOfStep


def by_message_size(items: Sequence[T], item_bytes: int) -> Iterator[Sequence[T]]:
    """As many items at a time as fit one message; one at least."""
    size = max(1, MESSAGE_BYTES // max(item_bytes, 1))
    for start in range(0, len(items), size):
        yield items[start : start + size]


def encoded_words(words: Words) -> bytes:
    return words.astype("<u8", copy=False).tobytes()


def decoded_words(data: bytes, shape: tuple[int, int], place: int) -> Words:
    expected = WORD_BYTES * shape[0] * shape[1]
    if len(data) != expected:
        raise PeerFaultError(place, f"{len(data)} bytes of words where {expected} were expected")
    return np.frombuffer(data, "<u8").astype(np.uint64, copy=False).reshape(shape)


def decoded_bits(data: bytes, count: int, place: int) -> NDArray[np.bool_]:
    if len(data) != -(-count // 8):
        raise PeerFaultError(place, f"{len(data)} bytes of bits where {-(-count // 8)} were expected")
    bits = np.unpackbits(np.frombuffer(data, np.uint8)).astype(bool)
    if bits[count:].any():
        raise PeerFaultError(place, "its bits are of more rows than there are")
    return bits[:count]


def encoded_bits(bits: NDArray[np.bool_]) -> bytes:
    return np.packbits(bits).tobytes()


def opened_numbers(end: EndOfStep, length: int, place: int) -> NDArray[np.int64]:
    if len(end.opened) != length or any(not -(1 << 63) <= each < 1 << 63 for each in end.opened):
        raise PeerFaultError(place, "what it tells everybody has another length or size")
    return np.array(end.opened, np.int64)
