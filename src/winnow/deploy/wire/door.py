"""Where requests come in, whichever transport brought them: who is it, may they come in, what do they want.

Everything that goes wrong leaves here as `Refused`, in one line, and the server goes on.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from winnow.core.errors import WinnowError
from winnow.deploy.trust.identity import Peer
from winnow.deploy.wire.codec import decode, decode_request, encode
from winnow.deploy.wire.errors import Damaged, NoRoom, Refused
from winnow.deploy.wire.messages import Fetch, Follow, Put, Refusal
from winnow.deploy.wire.transport import STALL_SECONDS, Admit, Identify, Service

log = logging.getLogger(__name__)

T = TypeVar("T")


class Door:
    """Bytes in, bytes out, by certificate. Only `Refused` and cancellation get through."""

    def __init__(self, service: Service, identify: Identify, admit: Admit, *, stall: float = STALL_SECONDS) -> None:
        self._service = service
        self._identify = identify
        self._admit = admit
        self._stall = stall

    async def call(self, certificate: bytes, data: bytes) -> bytes:
        peer = self._enter(certificate)
        with _refusing(peer):
            response = await self._service.call(peer, decode_request(data))
            if isinstance(response, Refusal):
                raise Refused(response.reason, leader=response.leader, again=response.again)
            return encode(response)

    async def fetch(self, certificate: bytes, data: bytes) -> AsyncGenerator[bytes, None]:
        peer = self._enter(certificate)
        with _refusing(peer):
            async with _closing(self._service.fetch(peer, decode(data, Fetch))) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def put(self, certificate: bytes, messages: AsyncIterator[bytes]) -> bytes:
        """The first message is the head; the rest are chunks."""
        peer = self._enter(certificate)
        with _refusing(peer):
            arriving = self._unless_stalled(messages)
            head = await anext(arriving, b"")
            return encode(await self._service.put(peer, decode(head, Put), arriving))

    async def follow(self, certificate: bytes, data: bytes) -> AsyncGenerator[bytes, None]:
        peer = self._enter(certificate)
        with _refusing(peer):
            async with _closing(self._service.follow(peer, decode(data, Follow))) as lines:
                async for line in lines:
                    yield encode(line)

    @asynccontextmanager
    async def moving(self) -> AsyncIterator[None]:
        """Around what waits for the other side to take something: it must not take for ever."""
        try:
            async with asyncio.timeout(self._stall):
                yield
        except TimeoutError:
            raise Refused(f"nothing moved for {self._stall:g} seconds", again=True) from None

    async def _unless_stalled(self, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        while True:
            async with self.moving():
                message = await anext(messages, None)
            if message is None:
                return
            yield message

    def _enter(self, certificate: bytes) -> Peer:
        try:
            peer = self._identify(certificate)
        except WinnowError as error:
            log.warning("refused a certificate: %s", error)
            raise Refused(str(error)) from None
        if (reason := self._admit(peer)) is not None:
            log.warning("refused %s: %s", peer.name, reason)
            raise Refused(reason)
        return peer


@contextmanager
def _refusing(peer: Peer) -> Iterator[None]:
    """Turn what a service raises into what its caller is told. Faults of our own are logged here and not shown."""
    try:
        yield
    except Refused as refused:
        log.info("refused %s: %s", peer.name, refused.reason)
        raise
    except WinnowError as error:
        log.warning("refused %s: %s", peer.name, error)
        raise Refused(str(error), again=isinstance(error, NoRoom | Damaged)) from None
    except Exception:
        log.exception("failed at a request of %s", peer.name)
        raise Refused("the server failed at this request; its log says why", again=True) from None


@asynccontextmanager
async def _closing(stream: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """End a stream at once when its reader goes away, not when the garbage collector finds it."""
    try:
        yield stream
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
