"""The calling end of gRPC with mutual TLS."""

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from threading import Lock
from typing import Any

import grpc

from winnow.deploy.wire.atomic_files import CHUNK
from winnow.deploy.wire.errors import RequestRefusedError, UnreachableError, one_line
from winnow.deploy.wire.grpc_common import (
    CALL,
    COMMON_OPTIONS,
    FETCH,
    FOLLOW,
    PUT,
    REFUSAL_KEY,
    SERVICE,
    decode_refusal,
    host_and_port,
)
from winnow.deploy.wire.message_codec import decode, decode_response, encode
from winnow.deploy.wire.messages import FetchBlob, FollowLog, LogLine, PutBlob, Request, Response, UploadedSize
from winnow.deploy.wire.stall_detector import StallDetector
from winnow.deploy.wire.transport_interface import CALL_SECONDS, STALL_SECONDS, Tls

PING_MS, PONG_MS = 2_000, 3_000
"""A server that hangs, or whose machine is cut off, says nothing: after so long without a word it is asked, and after
so long without an answer given up. Failover waits for both.
"""
CONGESTED_MS = 20_000
"""So long may the network acknowledge nothing of a transfer."""

WINDOW = 2 * CHUNK
"""Bytes of a transfer that may be on their way. gRPC would rather find out how many a connection holds, and where the
network is quick it then buffers tens of megabytes for each.
"""

OPTIONS = [
    *COMMON_OPTIONS,
    ("grpc.http2.lookahead_bytes", WINDOW),
    ("grpc.keepalive_time_ms", PING_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a link is a connection of its own
    # How long to wait between attempts is decided by `Reconnecting`.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # which is gRPC's name for the time that one attempt may take
    ("grpc.max_reconnect_backoff_ms", 500),
]
CALL_OPTIONS = [*OPTIONS, ("grpc.keepalive_timeout_ms", PONG_MS), ("grpc.http2.ping_timeout_ms", PONG_MS)]
TRANSFER_OPTIONS = [*OPTIONS, ("grpc.keepalive_timeout_ms", CONGESTED_MS)]

_FINAL = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED)


class GrpcLink:
    """Two connections: where the network is slow, an answer to a ping may wait behind megabytes of a transfer, so
    transfers have one to themselves. They end with the other.
    """

    def __init__(self, url: str, tls: Tls, *, stall: float = STALL_SECONDS) -> None:
        self.url = url
        self._stall = stall
        credentials = grpc.ssl_channel_credentials(tls.authority, tls.key, tls.certificate)
        asking = grpc.secure_channel(host_and_port(url), credentials, options=CALL_OPTIONS)
        moving = grpc.secure_channel(host_and_port(url), credentials, options=TRANSFER_OPTIONS)
        self._channels = (asking, moving)
        self._call = asking.unary_unary(f"/{SERVICE}/{CALL}")
        self._follow = asking.unary_stream(f"/{SERVICE}/{FOLLOW}")
        self._fetch = moving.unary_stream(f"/{SERVICE}/{FETCH}")
        self._put = moving.stream_unary(f"/{SERVICE}/{PUT}")
        self._lock = Lock()
        self._under_way: set[Any] = set()

    def call(self, request: Request, *, timeout: float = CALL_SECONDS) -> Response:
        with self._translated_errors():
            try:
                return decode_response(self._call(encode(request), timeout=timeout))
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    self._end_transfers()
                raise

    def fetch(self, request: FetchBlob) -> Generator[bytes, None, None]:
        with self._translated_errors():
            watch = StallDetector(self._stall)
            with self._tracked_transfer(self._fetch(encode(request))) as arriving, watch.running(arriving.cancel):
                for chunk in arriving:
                    with watch.paused():
                        yield chunk

    def put(self, head: PutBlob, chunks: Iterable[bytes]) -> UploadedSize:
        failures: list[Exception] = []
        watch = StallDetector(self._stall)
        with self._translated_errors():
            sent = watch.track(chain([encode(head)], _remembering(chunks, failures)))
            try:
                with self._tracked_transfer(self._put.future(sent)) as leaving, watch.running(leaving.cancel):
                    return decode(leaving.result(), UploadedSize)
            finally:
                if failures:
                    raise failures[0]

    def follow(self, request: FollowLog) -> Generator[LogLine, None, None]:
        with self._translated_errors():
            # what is not waited for is there already: a server that falls silent keeps nobody
            arriving = self._follow(encode(request), timeout=None if request.wait else CALL_SECONDS)
            try:
                for line in arriving:
                    yield decode(line, LogLine)
            finally:
                arriving.cancel()

    def close(self) -> None:
        for channel in self._channels:
            channel.close()

    @contextmanager
    def _tracked_transfer(self, transfer: Any) -> Iterator[Any]:
        with self._lock:
            self._under_way.add(transfer)
        try:
            yield transfer
        finally:
            transfer.cancel()
            with self._lock:
                self._under_way.discard(transfer)

    def _end_transfers(self) -> None:
        with self._lock:
            transfers = list(self._under_way)
        for transfer in transfers:
            transfer.cancel()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """gRPC's errors in our words."""
        try:
            yield
        except grpc.RpcError as error:
            try:
                raise self._translated(error) from None
            finally:
                error.__traceback__ = None  # the error is the call itself, which its own traceback refers to
        except grpc.FutureCancelledError:
            raise UnreachableError(f"{self.url}: no data transferred for {self._stall:g} seconds") from None
        except ValueError as error:
            if "closed channel" not in str(error):
                raise
            raise UnreachableError(f"the link to {self.url} is closed") from None

    def _translated(self, error: Any) -> Exception:
        for key, value in error.trailing_metadata() or ():
            if key == REFUSAL_KEY:
                return decode_refusal(value)
        if error.code() is grpc.StatusCode.CANCELLED:
            return UnreachableError(
                f"{self.url}: the connection was lost, or no data was transferred for {self._stall:g} seconds"
            )
        if error.code() in _FINAL:
            return RequestRefusedError(f"{self.url}: {one_line(error.details())}")
        return UnreachableError(f"{self.url}: {_plainly(error.details() or str(error.code()))}")


def _plainly(details: str) -> str:
    """What most likely happened. gRPC's words for it are long, and a server's TLS does not say why it hangs up."""
    if not details.startswith("failed to connect"):
        return one_line(details)
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return "the server's certificate is expired, for another host, or from another project"
    if "Connection refused" in details:
        return "no server is listening; start it, or check the address"
    if "Socket closed" in details or "reset" in details:
        return "the server closed the connection; if that persists, it rejects our certificate (expired or foreign)"
    return one_line(details)


def _remembering(chunks: Iterable[bytes], failures: list[Exception]) -> Iterator[bytes]:
    """gRPC reads the chunks in a thread of its own; what goes wrong there, such as an unreadable file, ends the stream
    early, which the server refuses, and is raised where the transfer was begun.
    """
    try:
        yield from chunks
    except Exception as error:
        failures.append(error)
