"""Messages between a job's process and the agent or server that started it, framed on a socketpair.

A job's process has no other connection. Arrays are files in the job's folder; messages contain their paths.
"""

import socket
import struct
import threading
from typing import Generic, TypeVar

import msgspec

from winnow.core import WinnowError
from winnow.core.message_decoding import UnreadableError, from_msgpack

LENGTH_PREFIX = struct.Struct("<I")
MAX_MESSAGE_BYTES = 64 << 20
"""No message is longer; a process that announces a longer one is broken."""

Incoming = TypeVar("Incoming", bound=msgspec.Struct)


class ChannelClosedError(WinnowError):
    """The other process has exited."""


class InvalidMessageError(WinnowError):
    """The other process sent bytes that are not a message."""


class Channel(Generic[Incoming]):
    """Messages both ways. Any thread may send; one may receive."""

    def __init__(self, connection: socket.socket, incoming: type[Incoming]) -> None:
        self._socket = connection
        self._incoming = incoming
        self._encoder = msgspec.msgpack.Encoder()
        self._sending = threading.Lock()

    def send(self, message: msgspec.Struct) -> None:
        data = self._encoder.encode(message)
        try:
            with self._sending:
                self._socket.sendall(LENGTH_PREFIX.pack(len(data)) + data)
        except OSError as error:
            raise ChannelClosedError(f"the other process has exited ({error.strerror})") from error

    def receive(self) -> Incoming:
        """The next message; raises ChannelClosedError at the end, and InvalidMessageError for invalid bytes."""
        (length,) = LENGTH_PREFIX.unpack(self._read_exactly(LENGTH_PREFIX.size))
        if length > MAX_MESSAGE_BYTES:
            raise ChannelClosedError(
                f"the other process announced a message of {length} bytes; the limit is {MAX_MESSAGE_BYTES}"
            )
        try:
            return from_msgpack(self._read_exactly(length), self._incoming)
        except UnreadableError as error:
            raise InvalidMessageError(f"the other process sent an invalid message ({error})") from error

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def _read_exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                more = self._socket.recv(min(count - len(data), 1 << 20))
            except OSError as error:
                raise ChannelClosedError(f"the other process has exited ({error.strerror})") from error
            if not more:
                raise ChannelClosedError("the other process has exited")
            data += more
        return bytes(data)
