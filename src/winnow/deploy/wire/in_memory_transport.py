"""The twin of the network, in one process: the same messages and bytes, the same refusals, faults on demand."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator, Iterable
from concurrent.futures import CancelledError
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from winnow.deploy.wire.errors import RequestRefusedError, UnreachableError, WireError
from winnow.deploy.wire.message_codec import MAX_MESSAGE, decode, decode_response, encode
from winnow.deploy.wire.messages import FetchBlob, FollowLog, LogLine, PutBlob, Request, Response, UploadedSize
from winnow.deploy.wire.request_frontend import RequestFrontend
from winnow.deploy.wire.transport_interface import CALL_SECONDS, STALL_SECONDS, Tls

T = TypeVar("T")

_servers: dict[str, "MemoryServer"] = {}


@dataclass(kw_only=True)
class NetworkFaults:
    """What the network does to those who use it. May be changed at any time."""

    disconnected: bool = False
    delay: float = 0.0
    """Seconds before each message."""
    drop_after: int | None = None
    """Break, once, the stream in which so many more bytes have gone by."""

    async def apply(self, size: int = 0) -> None:
        """A message of `size` bytes wants to go by."""
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.drop_after is not None:
            self.drop_after -= size
            if self.drop_after < 0:
                self.drop_after = None
                raise UnreachableError("the connection broke")
        if self.disconnected:
            raise UnreachableError("there is no connection")


class MemoryServer:
    """Reached at memory://name by links of the same process, from other threads than its own."""

    def __init__(self, url: str, tls: Tls, frontend: RequestFrontend) -> None:
        self.url = url
        self.frontend = frontend
        self.faults = NetworkFaults()
        self.loop: asyncio.AbstractEventLoop
        self._under_way: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        if self.url in _servers:
            raise WireError(f"cannot listen at {self.url}: the address is in use")
        self.loop = asyncio.get_running_loop()
        _servers[self.url] = self

    async def stop(self, grace: float = 5.0) -> None:
        _servers.pop(self.url, None)
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=grace)
        cancelled = list(self._under_way)
        for task in cancelled:
            task.cancel()
        if cancelled:
            await asyncio.wait(cancelled)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Of a link: until it is done, or the server stops."""
        task = asyncio.create_task(coroutine)
        self._under_way.add(task)
        try:
            return await task
        finally:
            task.cancel()
            self._under_way.discard(task)


class MemoryLink:
    def __init__(self, url: str, tls: Tls, *, stall: float = STALL_SECONDS) -> None:
        self.url = url
        self._certificate = tls.certificate
        self._stall = stall
        self._closed = False
        self._waiting: set[Any] = set()

    def call(self, request: Request, *, timeout: float = CALL_SECONDS) -> Response:
        server = self._server()

        async def exchange() -> bytes:
            await server.faults.apply()
            answer = await server.frontend.call(self._certificate, _only(encode(request)))
            await server.faults.apply()
            return answer

        return decode_response(self._wait(server, exchange(), timeout))

    def fetch(self, request: FetchBlob) -> Generator[bytes, None, None]:
        server = self._server()
        return self._stream(server, server.frontend.fetch(self._certificate, _only(encode(request))), self._stall)

    def put(self, head: PutBlob, chunks: Iterable[bytes]) -> UploadedSize:
        server = self._server()
        leaving = iter(chain([encode(head)], chunks))
        failures: list[Exception] = []

        async def messages() -> AsyncIterator[bytes]:
            """As over a network, a server is not told why a stream broke: its work is cancelled."""
            try:
                while (message := await asyncio.to_thread(next, leaving, None)) is not None:
                    await server.faults.apply(len(message))
                    yield _checked(message)
            except Exception as error:
                failures.append(error)
                raise asyncio.CancelledError from None

        try:
            return decode(self._wait(server, server.frontend.put(self._certificate, messages()), None), UploadedSize)
        except UnreachableError as error:
            raise failures[0] if failures else error from None

    def follow(self, request: FollowLog) -> Generator[LogLine, None, None]:
        server = self._server()
        lines = server.frontend.follow(self._certificate, _only(encode(request)))
        with closing(self._stream(server, lines, None)) as arriving:
            for line in arriving:
                yield decode(line, LogLine)

    def close(self) -> None:
        self._closed = True
        for future in list(self._waiting):
            future.cancel()

    def _stream(
        self, server: MemoryServer, stream: AsyncGenerator[bytes, None], timeout: float | None
    ) -> Generator[bytes, None, None]:
        async def arriving() -> bytes | None:
            piece = await anext(stream, None)
            await server.faults.apply(len(piece or b""))
            return piece

        async def end() -> None:
            await stream.aclose()

        try:
            while (piece := self._wait(server, arriving(), timeout)) is not None:
                yield piece
        finally:
            if not server.loop.is_closed():
                asyncio.run_coroutine_threadsafe(end(), server.loop)

    def _server(self) -> MemoryServer:
        if self._closed:
            raise UnreachableError(f"the link to {self.url} is closed")
        if self.url not in _servers:
            raise UnreachableError(f"{self.url}: no server is listening")
        return _servers[self.url]

    def _wait(self, server: MemoryServer, coroutine: Coroutine[Any, Any, T], timeout: float | None) -> T:
        if _servers.get(self.url) is not server:
            coroutine.close()
            raise UnreachableError(f"{self.url}: the server has stopped")
        future = asyncio.run_coroutine_threadsafe(server.run(coroutine), server.loop)
        self._waiting.add(future)
        if self._closed:  # it may have been closed before it knew of this
            future.cancel()
        try:
            return future.result(timeout)
        except (CancelledError, asyncio.CancelledError):
            raise UnreachableError(f"{self.url}: the connection was closed") from None
        except TimeoutError:
            raise UnreachableError(f"{self.url}: no answer within {timeout:g} seconds") from None
        finally:
            future.cancel()
            self._waiting.discard(future)


async def _only(message: bytes) -> AsyncIterator[bytes]:
    yield message


def _checked(message: bytes) -> bytes:
    if len(message) > MAX_MESSAGE:
        raise RequestRefusedError(f"received a message of {len(message)} bytes; the limit is {MAX_MESSAGE}")
    return message
