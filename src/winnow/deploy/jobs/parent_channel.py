"""How a job's process receives messages from its parent: in a thread, so that waiting can time out."""

import queue
import socket
import threading
from collections import deque
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

from winnow.core import WinnowError
from winnow.deploy.jobs.ipc_channel import Channel, ChannelClosedError, InvalidMessageError
from winnow.deploy.sandbox.seccomp import die_with_parent

Incoming = TypeVar("Incoming", bound=msgspec.Struct)
MessageType = TypeVar("MessageType", bound=msgspec.Struct)


class StopRequestedError(WinnowError):
    """The parent wants this process to end."""


class ParentChannel(Generic[Incoming]):
    """Messages from the parent, by type: those of other types wait until they are asked for."""

    def __init__(self, channel: Channel[Incoming], *, ends: type[Incoming]) -> None:
        """A message of type `ends` stops the process."""
        self._channel, self._stop_message = channel, ends
        self._queue: queue.SimpleQueue[Incoming | None] = queue.SimpleQueue()
        self._waiting: deque[Incoming] = deque()
        threading.Thread(target=self._listen, name="parent", daemon=True).start()

    def send(self, message: msgspec.Struct) -> None:
        self._channel.send(message)

    def receive(self, expected: type[MessageType], timeout: float | None = None) -> MessageType | None:
        """The next message of this type; None if there is none in time. Raises StopRequestedError."""
        for index, message in enumerate(self._waiting):
            if isinstance(message, expected):
                del self._waiting[index]
                return message
        while True:
            try:
                message_or_end = self._queue.get(timeout=timeout)
            except queue.Empty:
                return None
            if message_or_end is None:
                raise StopRequestedError("the parent process has exited")
            if isinstance(message_or_end, expected):
                return message_or_end
            if isinstance(message_or_end, self._stop_message):
                raise StopRequestedError(getattr(message_or_end, "reason", "the parent stopped the job"))
            self._waiting.append(message_or_end)

    def _listen(self) -> None:
        try:
            while True:
                self._queue.put(self._channel.receive())
        except (ChannelClosedError, InvalidMessageError):
            self._queue.put(None)


def open_parent_channel(descriptor: int, incoming: Any, ends: Any) -> ParentChannel[Any]:
    """The channel to the parent, over an inherited socket. The process ends with its parent."""
    with suppress(OSError, AttributeError):  # not on Linux: then it ends when it next listens
        die_with_parent()
    return ParentChannel(Channel(socket.socket(fileno=descriptor), incoming), ends=ends)
