"""A job's process listens to its parent, in a thread of its own, so that waiting can have an end."""

import queue
import threading
from collections import deque
from typing import Generic, TypeVar

import msgspec

from winnow.core import WinnowError
from winnow.deploy.jobs.ipc_channel import Channel, ChannelClosedError, InvalidMessageError

Incoming = TypeVar("Incoming", bound=msgspec.Struct)
MessageType = TypeVar("MessageType", bound=msgspec.Struct)


class StopRequestedError(WinnowError):
    """The parent wants this process to end."""


class ParentChannel(Generic[Incoming]):
    """Messages from the parent, by kind: what nobody asked for yet waits its turn."""

    def __init__(self, channel: Channel[Incoming], *, ends: type[Incoming]) -> None:
        self._channel, self._ends = channel, ends
        self._queue: queue.SimpleQueue[Incoming | None] = queue.SimpleQueue()
        self._waiting: deque[Incoming] = deque()
        threading.Thread(target=self._listen, name="parent", daemon=True).start()

    def send(self, message: msgspec.Struct) -> None:
        self._channel.send(message)

    def receive(self, wanted: type[MessageType], timeout: float | None = None) -> MessageType | None:
        """The next message of this kind; None if there is none in time. Raises HaltedError when it is all over."""
        for place, message in enumerate(self._waiting):
            if isinstance(message, wanted):
                del self._waiting[place]
                return message
        while True:
            try:
                message_or_end = self._queue.get(timeout=timeout)
            except queue.Empty:
                return None
            if message_or_end is None:
                raise StopRequestedError("the parent process has gone")
            if isinstance(message_or_end, wanted):
                return message_or_end
            if isinstance(message_or_end, self._ends):
                raise StopRequestedError(getattr(message_or_end, "reason", "it is over"))
            self._waiting.append(message_or_end)

    def _listen(self) -> None:
        try:
            while True:
                self._queue.put(self._channel.receive())
        except (ChannelClosedError, InvalidMessageError):
            self._queue.put(None)
