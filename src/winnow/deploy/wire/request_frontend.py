"""Where requests arrive, from any transport: identify the caller, check that it is admitted, decode, call the service.

Every failure leaves as a `RequestRefusedError` of one line, and the server continues.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from winnow.core.errors import WinnowError
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.concurrency_limits import RequestLimiter
from winnow.deploy.wire.errors import BlobDamagedError, RequestRefusedError, StorageFullError
from winnow.deploy.wire.message_codec import decode, decode_request, encode
from winnow.deploy.wire.messages import FetchBlob, FollowLog, PutBlob, RequestRefusal
from winnow.deploy.wire.transport_interface import STALL_SECONDS, Admit, Identify, WireService

log = logging.getLogger(__name__)

T = TypeVar("T")

READMISSION_SECONDS = 5.0
"""Seconds after which the certificate of a caller with a long request is checked again."""


class RequestFrontend:
    """Handles requests by certificate. It raises nothing but `RequestRefusedError` and cancellation.

    Nothing of a request is read before the caller is identified and within its limits.
    """

    def __init__(
        self,
        service: WireService,
        identify: Identify,
        admit: Admit,
        *,
        stall: float = STALL_SECONDS,
        limiter: RequestLimiter | None = None,
    ) -> None:
        self._service = service
        self._identify = identify
        self._admit = admit
        self._stall = stall
        self._limiter = limiter or RequestLimiter()

    async def call(self, certificate: bytes, messages: AsyncIterator[bytes]) -> bytes:
        with self._admitted_request(certificate) as peer:
            data = await self._first(peer, messages)
            with self._limiter.message(peer, len(data)):
                response = await self._service.call(peer, decode_request(data))
            self._identify_and_admit(certificate)  # the call may have taken long
            if isinstance(response, RequestRefusal):
                raise RequestRefusedError(response.reason, leader=response.leader, retry=response.retry)
            return encode(response)

    async def fetch(self, certificate: bytes, messages: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        with self._admitted_request(certificate) as peer:
            request = decode(await self._first(peer, messages), FetchBlob)
            async with _closing(self._while_admitted(certificate, peer, self._service.fetch(peer, request))) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def put(self, certificate: bytes, messages: AsyncIterator[bytes]) -> bytes:
        """The first message is the head; the rest are chunks."""
        with self._admitted_request(certificate) as peer:
            head = decode(await self._first(peer, messages), PutBlob)
            async with _closing(self._while_admitted(certificate, peer, self._unless_stalled(messages))) as chunks:
                return encode(await self._service.put(peer, head, chunks))

    async def follow(self, certificate: bytes, messages: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        with self._admitted_request(certificate) as peer:
            request = decode(await self._first(peer, messages), FollowLog)
            async with _closing(self._while_admitted(certificate, peer, self._service.follow(peer, request))) as lines:
                async for line in lines:
                    yield encode(line)

    @asynccontextmanager
    async def stall_timeout(self) -> AsyncIterator[None]:
        """Limits how long the other side may take for one step of a transfer."""
        try:
            async with asyncio.timeout(self._stall):
                yield
        except TimeoutError:
            raise RequestRefusedError(f"no data transferred for {self._stall:g} seconds", retry=True) from None

    async def _first(self, peer: Peer, messages: AsyncIterator[bytes]) -> bytes:
        async with self.stall_timeout(), self._limiter.reading_slot(peer):
            return await anext(messages, b"")

    async def _unless_stalled(self, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        while True:
            async with self.stall_timeout():
                message = await anext(messages, None)
            if message is None:
                return
            yield message

    async def _while_admitted(self, certificate: bytes, peer: Peer, stream: AsyncIterator[T]) -> AsyncIterator[T]:
        """Its items, as long as their reader or sender is admitted: checked for every item, and while none arrives.

        The certificate itself, which may expire, is checked less often.
        """
        checked = time.monotonic()
        async with _closing(stream):
            while True:
                coming = asyncio.ensure_future(_next(stream))
                try:
                    while not coming.done():
                        await asyncio.wait([coming], timeout=READMISSION_SECONDS)
                        if time.monotonic() - checked >= READMISSION_SECONDS:
                            self._identify_and_admit(certificate)
                            checked = time.monotonic()
                finally:
                    if not coming.done():
                        coming.cancel()
                        await asyncio.wait([coming])
                if not (item := coming.result()):
                    return
                self._check_admitted(peer)
                yield item[0]

    @contextmanager
    def _admitted_request(self, certificate: bytes) -> Iterator[Peer]:
        peer = self._identify_and_admit(certificate)
        with _refusing(peer), self._limiter.request(peer):
            yield peer

    def _identify_and_admit(self, certificate: bytes) -> Peer:
        try:
            peer = self._identify(certificate)
        except WinnowError as error:
            log.warning("rejected a certificate: %s", error)
            raise RequestRefusedError(str(error)) from None
        self._check_admitted(peer)
        return peer

    def _check_admitted(self, peer: Peer) -> None:
        if (reason := self._admit(peer)) is not None:
            log.warning("rejected a request from %s: %s", peer.name, reason)
            raise RequestRefusedError(reason)


@contextmanager
def _refusing(peer: Peer) -> Iterator[None]:
    """Turn errors of a service into refusals. Internal errors are logged and not shown to the caller."""
    try:
        yield
    except RequestRefusedError as refused:
        log.info("rejected a request from %s: %s", peer.name, refused.reason)
        raise
    except WinnowError as error:
        log.warning("rejected a request from %s: %s", peer.name, error)
        raise RequestRefusedError(str(error), retry=isinstance(error, StorageFullError | BlobDamagedError)) from None
    except Exception:
        log.exception("a request from %s failed", peer.name)
        raise RequestRefusedError("internal server error; see the server's log", retry=True) from None


async def _next(stream: AsyncIterator[T]) -> tuple[T, ...]:
    """The next item, alone; nothing at the end."""
    async for item in stream:
        return (item,)
    return ()


@asynccontextmanager
async def _closing(stream: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close a stream as soon as its reader is gone, not when it is garbage collected."""
    try:
        yield stream
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
