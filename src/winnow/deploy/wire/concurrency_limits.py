"""How much a party may have under way at a server at the same time. Whoever has too much is refused, and alone."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.errors import TooManyRequestsError
from winnow.deploy.wire.message_codec import MAX_MESSAGE

MAX_REQUESTS_PER_PARTY = 64
"""Requests of one party: calls, transfers and streams of lines together. A site has one that waits, and a few a job."""
MAX_REQUESTS = 4096
MAX_BYTES_PER_PARTY = MAX_MESSAGE + MAX_MESSAGE // 4
"""Of one party's messages that are being answered: one of the largest, and many small ones."""
MAX_BYTES = 16 * MAX_MESSAGE
MAX_UNREAD_PER_PARTY = 4
"""First messages of one party that are read at the same time. Of the others little is buffered, so that many which are
sent by halves take no room.
"""


class RequestLimiter:
    """Counts by the name in a party's certificate. For one event loop."""

    def __init__(self, calls: int = MAX_REQUESTS_PER_PARTY) -> None:
        self._most = calls
        self._calls: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._arriving: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def reading_slot(self, peer: Peer) -> asyncio.Semaphore:
        """To be held while a message of unknown size is read."""
        return self._arriving.setdefault(peer.name, asyncio.Semaphore(MAX_UNREAD_PER_PARTY))

    @contextmanager
    def request(self, peer: Peer) -> Iterator[None]:
        """Around all that is done for a request, before any of it is read."""
        if self._calls[peer.name] >= self._most:
            raise TooManyRequestsError(
                f"{peer} already has {self._most} open requests, the limit; wait for one to finish"
            )
        if self._calls.total() >= MAX_REQUESTS:
            raise TooManyRequestsError(
                f"this server already has {MAX_REQUESTS} open requests, the limit; try again later"
            )
        with _counted(self._calls, peer.name, 1):
            yield

    @contextmanager
    def message(self, peer: Peer, size: int) -> Iterator[None]:
        """Around the answering of a message."""
        if self._bytes[peer.name] + size > MAX_BYTES_PER_PARTY:
            raise TooManyRequestsError(
                f"{peer} already has {self._bytes[peer.name]} bytes of messages in progress; wait for one to finish"
            )
        if self._bytes.total() + size > MAX_BYTES:
            raise TooManyRequestsError("this server is processing too many large messages; try again later")
        with _counted(self._bytes, peer.name, size):
            yield


@contextmanager
def _counted(counter: Counter[str], name: str, amount: int) -> Iterator[None]:
    counter[name] += amount
    try:
        yield
    finally:
        counter[name] -= amount
        if counter[name] == 0:
            del counter[name]
