"""Some of a list of identifiers in as many bytes as all of it take, so that the length does not tell which."""

from collections.abc import Sequence

import msgspec

from winnow.core.message_decoding import UnreadableError, from_msgpack

LENGTH_BYTES = 8


def padded(some: Sequence[str], all_: Sequence[str]) -> bytes:
    encoded = msgspec.msgpack.encode(some)
    return len(encoded).to_bytes(LENGTH_BYTES) + encoded.ljust(len(msgspec.msgpack.encode(all_)), b"\0")


def unpadded(message: bytes) -> list[str]:
    """UnreadableError if it is none."""
    length = int.from_bytes(message[:LENGTH_BYTES])
    if length > len(message) - LENGTH_BYTES:
        raise UnreadableError("the list is cut off")
    return from_msgpack(message[LENGTH_BYTES : LENGTH_BYTES + length], list[str])
