"""Messages between a job's process and the agent or server that started it, framed on a socketpair.

A job's process has no other connection. Arrays are files in the job's folder; messages contain their paths.
"""

import socket
import struct
import subprocess
import threading
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import msgspec

from winnow.core import WinnowError
from winnow.core.message_decoding import UnreadableError, from_msgpack

if TYPE_CHECKING:
    from winnow.deploy.sandbox.job_process import JobProcess

LENGTH_PREFIX = struct.Struct("<I")
MAX_MESSAGE_BYTES = 64 << 20
"""No message is longer; a process that announces a longer one is broken."""

Incoming = TypeVar("Incoming", bound=msgspec.Struct)


class ChannelClosedError(WinnowError):
    """The other process has exited."""


class InvalidMessageError(WinnowError):
    """The other process sent bytes that are not a message."""


class Channel(Generic[Incoming]):
    """Messages both ways. Any thread may send; one may receive. Leaving its context closes it."""

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
        """Close the connection. May be called twice."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

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


def stop_process(
    process: "JobProcess",
    channel: Channel[Any],
    request: msgspec.Struct,
    grace: float,
) -> int:
    """Send `request`, end the process if it still runs after `grace` seconds, and close the channel.

    A process that has exited, even between two calls, needs no request. Return its exit status.
    """
    with channel:
        try:
            with suppress(ChannelClosedError, subprocess.TimeoutExpired):
                channel.send(request)
                process.wait(grace)
        finally:
            status = process.end()
    return status
