"""The line between the process of a job and the agent or server that started it: a socketpair, framed messages.

A job's process has no other connection. Arrays go by files in the job's folder, whose paths stand in messages.
"""

import socket
import struct
import threading
from typing import Generic, TypeVar

import msgspec

from winnow.core import WinnowError
from winnow.core.decode import UnreadableError, from_msgpack

LENGTH_PREFIX = struct.Struct("<I")
MAX_MESSAGE_BYTES = 64 << 20
"""No message is longer; a process that claims so is broken."""

Incoming = TypeVar("Incoming", bound=msgspec.Struct)


class ChannelClosedError(WinnowError):
    """The other process has gone."""


class InvalidMessageError(WinnowError):
    """The other process does not speak our language."""


class Channel(Generic[Incoming]):
    """Messages both ways. Any thread may send; one may receive."""

    def __init__(self, line: socket.socket, incoming: type[Incoming]) -> None:
        self._line = line
        self._incoming = incoming
        self._encoder = msgspec.msgpack.Encoder()
        self._sending = threading.Lock()

    def send(self, message: msgspec.Struct) -> None:
        data = self._encoder.encode(message)
        try:
            with self._sending:
                self._line.sendall(LENGTH_PREFIX.pack(len(data)) + data)
        except OSError as error:
            raise ChannelClosedError(f"the other process has gone ({error.strerror})") from error

    def receive(self) -> Incoming:
        """The next message; raises ChannelClosedError at the end, and GarbledError for what is none."""
        (length,) = LENGTH_PREFIX.unpack(self._exactly(LENGTH_PREFIX.size))
        if length > MAX_MESSAGE_BYTES:
            raise ChannelClosedError(
                f"the other process sent a message of {length} bytes; {MAX_MESSAGE_BYTES} is the most"
            )
        try:
            return from_msgpack(self._exactly(length), self._incoming)
        except UnreadableError as error:
            raise InvalidMessageError(f"the other process said something that is no message ({error})") from error

    def fileno(self) -> int:
        return self._line.fileno()

    def close(self) -> None:
        self._line.close()

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                more = self._line.recv(min(count - len(data), 1 << 20))
            except OSError as error:
                raise ChannelClosedError(f"the other process has gone ({error.strerror})") from error
            if not more:
                raise ChannelClosedError("the other process has gone")
            data += more
        return bytes(data)
