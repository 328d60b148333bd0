"""Messages that are longer than what sites take at once: they go in parts, each of which the addressee asks for."""

import msgspec

from winnow.core.message_decoding import UnreadableError, from_msgpack
from winnow.privacy.shares.errors import SharesError

MAX_PARTS = 64


class _Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    left: int
    """So many parts follow; −1 asks for the next one."""
    body: bytes


NEXT = msgspec.msgpack.encode(_Part(-1, b""))


class LongMessages:
    """Of one party. A message that fits goes as it is."""

    def __init__(self, part_bytes: int) -> None:
        self._bytes = part_bytes
        self._waiting: dict[int, list[bytes]] = {}
        self._received: dict[int, list[_Part]] = {}

    @property
    def waiting(self) -> bool:
        """Whether somebody has not yet asked for all parts."""
        return bool(self._waiting)

    def send(self, to: int, message: bytes) -> bytes:
        """The message, or its first part."""
        if len(message) <= self._bytes:
            return message
        bodies = [message[place : place + self._bytes] for place in range(0, len(message), self._bytes)]
        parts = [_Part(len(bodies) - 1 - place, body) for place, body in enumerate(bodies)]
        first, *self._waiting[to] = [msgspec.msgpack.encode(each) for each in parts]
        return first

    def receive(self, sender: int, data: bytes) -> tuple[bytes | None, dict[int, bytes]]:
        """A message that is complete, or None and what to write to its sender."""
        try:
            part = from_msgpack(data, _Part)
        except UnreadableError:
            if sender in self._received:
                raise SharesError("its message ended before its last part", sender) from None
            return data, {}
        if part.left == -1:
            return None, {sender: self._next(sender)}
        parts = self._received.setdefault(sender, [])
        if part.left != (parts[-1].left - 1 if parts else part.left) or not 0 <= part.left < MAX_PARTS:
            raise SharesError("its message has parts that do not follow each other, or too many", sender)
        parts.append(part)
        if part.left:
            return None, {sender: NEXT}
        return b"".join(each.body for each in self._received.pop(sender)), {}

    def _next(self, to: int) -> bytes:
        if to not in self._waiting:
            raise SharesError("it asks for a part of a message that has none", to)
        part = self._waiting[to].pop(0)
        if not self._waiting[to]:
            del self._waiting[to]
        return part
