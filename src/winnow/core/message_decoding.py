"""Messages out of another party's bytes. msgspec has several errors for what is no message; here there is one."""

from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from winnow.core.untrusted_text import one_line

T = TypeVar("T")


class UnreadableError(ValueError):
    """Bytes that are not what they should be, in one line."""


def from_msgpack(data: bytes, kind: type[T]) -> T:
    """The one message of this kind that the bytes are."""
    return cast(T, _decoded(_of_msgpack(cast(Any, kind)), data))


def from_json(data: bytes, kind: type[T]) -> T:
    return cast(T, _decoded(_of_json(cast(Any, kind)), data))


@cache
def _of_msgpack(kind: Any) -> Any:
    return msgspec.msgpack.Decoder(kind)


@cache
def _of_json(kind: Any) -> Any:
    return msgspec.json.Decoder(kind)


def _decoded(decoder: Any, data: bytes) -> Any:
    """What is no UTF-8 raises a `UnicodeDecodeError`, which is a ValueError and none of msgspec's own."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnreadableError(one_line(error)) from error
