"""A service over gRPC with mutual TLS: whoever has no certificate of this project does not get past the handshake."""

import logging
import resource
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc
import grpc.aio

from winnow.deploy.wire.atomic_files import CHUNK
from winnow.deploy.wire.errors import RequestRefusedError, TooManyRequestsError, WireError
from winnow.deploy.wire.grpc_common import (
    CALL,
    COMMON_OPTIONS,
    FETCH,
    FOLLOW,
    KEEPALIVE_MS,
    KEEPALIVE_TIMEOUT_MS,
    PUT,
    REFUSAL_KEY,
    SERVICE,
    encode_refusal,
    host_and_port,
)
from winnow.deploy.wire.request_frontend import RequestFrontend
from winnow.deploy.wire.transport_interface import Tls

log = logging.getLogger(__name__)

WINDOW = CHUNK // 4
"""Bytes of a request that are buffered before anybody has looked whose it is. More come once a message is read."""
HANDSHAKE_MS = 10_000
"""Whoever connects and says nothing is hung up on after so long."""
STREAMS = 100
"""Of one connection; whoever has more waits, at its own end."""
IDLE_MS = 300_000
"""A connection without requests is closed; those who come back connect anew without noticing."""

MAX_CONNECTIONS_OPTION = "grpc.max_allowed_incoming_connections"
"""Strangers' count too: they must leave a server the descriptors that it needs for its files."""

ANY_FILES = 1 << 20
"""Where there is no limit."""

OPTIONS = [
    *COMMON_OPTIONS,
    ("grpc.http2.lookahead_bytes", WINDOW),
    ("grpc.so_reuseport", 0),  # a second server on this port is a mistake, not a helper
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
    ("grpc.max_concurrent_streams", STREAMS),
    ("grpc.max_connection_idle_ms", IDLE_MS),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
]

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class GrpcServer:
    def __init__(self, url: str, tls: Tls, frontend: RequestFrontend) -> None:
        self.url = url
        self._frontend = frontend
        self._server: grpc.aio.Server | None = None
        self._credentials = grpc.ssl_server_credentials(
            [(tls.key, tls.certificate)], root_certificates=tls.authority, require_client_auth=True
        )

    async def start(self) -> None:
        server = grpc.aio.server(options=[*OPTIONS, (MAX_CONNECTIONS_OPTION, _open_files() // 2)])
        server.add_generic_rpc_handlers((self._handlers(),))
        try:
            port = server.add_secure_port(host_and_port(self.url), self._credentials)
        except RuntimeError as error:
            raise WireError(f"cannot listen at {self.url}: the port is in use or the certificate is invalid") from error
        self.url = f"{self.url.rpartition(':')[0]}:{port}"
        self._server = server
        await server.start()

    async def stop(self, grace: float = 5.0) -> None:
        server = self._server
        self._server = None  # it refers to our methods: its sockets and thread would wait for the collector
        if server is not None:
            await server.stop(grace)

    def _handlers(self) -> grpc.GenericRpcHandler:
        """All take a stream, also where one message comes: gRPC would read that before it asks us whether it may."""
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            CALL: grpc.stream_unary_rpc_method_handler(self._call),
            FETCH: grpc.stream_stream_rpc_method_handler(self._fetch),
            PUT: grpc.stream_unary_rpc_method_handler(self._put),
            FOLLOW: grpc.stream_stream_rpc_method_handler(self._follow),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _call(self, _messages: AsyncIterator[bytes], context: Context) -> bytes:
        return await _or_refuse(context, lambda: self._frontend.call(_certificate(context), _received(context)))

    async def _put(self, _messages: AsyncIterator[bytes], context: Context) -> bytes:
        return await _or_refuse(context, lambda: self._frontend.put(_certificate(context), _received(context)))

    async def _fetch(self, _messages: AsyncIterator[bytes], context: Context) -> None:
        pieces = self._frontend.fetch(_certificate(context), _received(context))
        await _or_refuse(context, lambda: self._send(pieces, context))

    async def _follow(self, _messages: AsyncIterator[bytes], context: Context) -> None:
        lines = self._frontend.follow(_certificate(context), _received(context))
        await _or_refuse(context, lambda: self._send(lines, context))

    async def _send(self, stream: AsyncGenerator[bytes, None], context: Context) -> bytes:
        async with aclosing(stream):
            async for piece in stream:
                async with self._frontend.stall_timeout():
                    await context.write(piece)
        return b""


async def _received(context: Context) -> AsyncIterator[bytes]:
    """Yield the messages of a request. gRPC's own iterator over them refers to itself, and with it to the server."""
    while (message := await context.read()) is not grpc.aio.EOF:
        yield message


def _open_files() -> int:
    """That this process may have."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if most != resource.RLIM_INFINITY else ANY_FILES


def _certificate(context: Context) -> bytes:
    """PEM of the peer's certificate. The handshake has asked for one and checked it."""
    [certificate] = context.auth_context()["x509_pem_cert"]
    assert isinstance(certificate, bytes)
    return certificate


def _clear_frames(error: BaseException | None) -> None:
    """Clear what the frames of an answered error refer to: each other and, through this call, the server."""
    while error is not None:
        trace = error.__traceback__
        error.__traceback__ = None
        traceback.clear_frames(trace)
        error = error.__context__


async def _or_refuse(context: Context, answer: Callable[[], Awaitable[bytes]]) -> bytes:
    try:
        return await answer()
    except RequestRefusedError as refused:
        too_many = isinstance(refused, TooManyRequestsError)
        packed = encode_refusal(refused)
        _clear_frames(refused)
    # Not `abort`: the exception that it raises refers to itself, and with it to the server.
    context.set_trailing_metadata(((REFUSAL_KEY, packed),))
    context.set_details("refused")
    context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED if too_many else grpc.StatusCode.FAILED_PRECONDITION)
    return b""
