"""Messages to bytes and back. What is not exactly a message is refused in one line, whatever it is."""

from typing import Any, TypeVar, cast

import msgspec

from winnow.core.message_decoding import UnreadableError, from_msgpack
from winnow.deploy.wire.errors import WireError
from winnow.deploy.wire.messages import Request, Response, WireMessage

MAX_MESSAGE = 4 * 2**20
"""Bytes of the largest message. Arrays are blobs and have no such limit."""

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


def encode(message: WireMessage) -> bytes:
    data = _encoder.encode(message)
    if len(data) > MAX_MESSAGE:
        raise WireError(f"{type(message).__name__} is too large to send: {len(data)} bytes; the limit is {MAX_MESSAGE}")
    return data


def decode(data: bytes, kind: type[T]) -> T:
    """The one message of this kind that `data` is."""
    return cast(T, _decode(data, kind))


def decode_request(data: bytes) -> Request:
    return cast(Request, _decode(data, Request))


def decode_response(data: bytes) -> Response:
    return cast(Response, _decode(data, Response))


def _decode(data: bytes, kind: Any) -> object:
    if len(data) > MAX_MESSAGE:
        raise WireError(f"received a message of {len(data)} bytes; the limit is {MAX_MESSAGE}")
    try:
        return from_msgpack(data, kind)
    except UnreadableError as error:
        raise WireError(f"malformed message: {error}") from None
