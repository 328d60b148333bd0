"""A link that does not give up: it goes from endpoint to endpoint, waits longer and longer, and follows the leader."""

import random
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock, Timer
from typing import TypeVar

from msgspec.structs import replace

from winnow.deploy.wire.errors import RequestRefusedError, UnreachableError
from winnow.deploy.wire.messages import FetchBlob, FollowLog, LogLine, PutBlob, Request, Response, UploadedSize
from winnow.deploy.wire.transport_interface import CALL_SECONDS, ServerLink

T = TypeVar("T")

NOTICE_SECONDS = 2.0
"""Seconds without an answer after which a user is told that the link is still trying."""


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Seconds to wait: twice as long each time, and a random part of it, so that sites do not come back all at once."""

    first: float = 0.2
    longest: float = 15.0

    def seconds(self, attempt: int) -> float:
        longest = min(self.longest, self.first * 2.0 ** min(attempt, 30))
        return longest * random.uniform(0.5, 1.0)


class ReconnectingLink:
    """Retries for `retry_seconds` before it raises `UnreachableError`; None retries until it is closed.

    Calls may be sent twice: all requests are made so that this changes nothing. A broken fetch continues at the byte
    and a broken follow at the line where it stopped. A broken put is raised, since its chunks are gone: `upload` asks
    how much arrived and goes on from there.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        connect: Callable[[str], ServerLink],
        *,
        backoff: Backoff = Backoff(),  # noqa: B008 - frozen
        retry_seconds: float | None = None,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        """`notify` gets one line when a request has had no answer for a while."""
        self._endpoints = tuple(endpoints)
        self._connect = connect
        self._backoff = backoff
        self._retry_seconds = retry_seconds
        self._notify = notify
        self._lock = Lock()
        self._links: dict[str, ServerLink] = {}
        self._at = 0
        self._closed = Event()

    def call(self, request: Request, *, timeout: float = CALL_SECONDS) -> Response:
        return self._retry(lambda link: link.call(request, timeout=timeout))

    def fetch(self, request: FetchBlob) -> Generator[bytes, None, None]:
        return self._stream(
            lambda link, offset: link.fetch(replace(request, offset=offset)),
            request.offset,
            lambda offset, chunk: offset + len(chunk),
        )

    def put(self, head: PutBlob, chunks: Iterable[bytes]) -> UploadedSize:
        endpoint, link = self._current()
        try:
            return link.put(head, chunks)
        except UnreachableError:
            self._switch_endpoint(endpoint)
            raise
        except RequestRefusedError as refused:
            self._switch_endpoint(endpoint, refused.leader)
            raise

    def follow(self, request: FollowLog) -> Generator[LogLine, None, None]:
        return self._stream(
            lambda link, first: link.follow(replace(request, first=first)),
            request.first,
            lambda _, line: line.number + 1,
        )

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            links = list(self._links.values())
        for link in links:
            link.close()

    def _stream(
        self,
        begin: Callable[[ServerLink, int], Generator[T, None, None]],
        at: int,
        after: Callable[[int, T], int],
    ) -> Generator[T, None, None]:
        """The items of a stream that is begun anew, at the place after the last item, whenever it breaks."""
        while True:
            stream, item = self._retry(partial(_begun, begin, at), may_wait=True)
            with closing(stream):
                try:
                    while item is not None:
                        at = after(at, item)
                        yield item
                        item = next(stream, None)
                except UnreachableError:
                    continue
            return

    def _retry(self, attempt: Callable[[ServerLink], T], *, may_wait: bool = False) -> T:
        """The result of the first attempt that succeeds. With `may_wait` a long attempt is normal, not a delay."""
        begun, failures = time.monotonic(), 0
        notice = Timer(NOTICE_SECONDS, self._notice)
        notice.daemon = True
        if self._notify is not None and not may_wait:
            notice.start()
        try:
            while True:
                endpoint, link = self._current()
                try:
                    return attempt(link)
                except UnreachableError as error:
                    self._switch_endpoint(endpoint)
                    failure: Exception = error
                except RequestRefusedError as refused:
                    if not refused.leader and not refused.retry:
                        raise
                    self._switch_endpoint(endpoint, refused.leader)
                    failure = refused
                failures += 1
                if self._notify is not None and may_wait and failures == 1:
                    notice.start()
                self._pause(failures, begun, failure)
        finally:
            notice.cancel()

    def _notice(self) -> None:
        if self._notify is not None and self._retry_seconds is not None:
            left = max(0.0, self._retry_seconds - NOTICE_SECONDS)
            self._notify(f"no answer from {', '.join(self._endpoints)} yet; trying for {left:.0f} s more")

    def _current(self) -> tuple[str, ServerLink]:
        """A link stays open when another is turned to: transfers over it may be doing well."""
        with self._lock:
            if self._closed.is_set():
                raise UnreachableError("the link is closed")
            endpoint = self._endpoints[self._at]
            if endpoint not in self._links:
                self._links[endpoint] = self._connect(endpoint)
            return endpoint, self._links[endpoint]

    def _switch_endpoint(self, endpoint: str, leader: str = "") -> None:
        """To the leader where it is an endpoint of ours; else to the next, unless another thread has done so."""
        with self._lock:
            if leader in self._endpoints:
                self._at = self._endpoints.index(leader)
            elif self._endpoints[self._at] == endpoint:
                self._at = (self._at + 1) % len(self._endpoints)

    def _pause(self, failures: int, begun: float, failure: Exception) -> None:
        """Each endpoint is tried once before the first pause, and one once more when the time is up."""
        rounds = failures // len(self._endpoints)
        seconds = self._backoff.seconds(rounds - 1) if rounds else 0.0
        if self._retry_seconds is not None:
            left = begun + self._retry_seconds - time.monotonic()
            if left <= 0:
                raise failure
            seconds = min(seconds, left)
        if self._closed.wait(seconds):
            raise UnreachableError("the link is closed") from failure


def _begun(
    begin: Callable[[ServerLink, int], Generator[T, None, None]], at: int, link: ServerLink
) -> tuple[Generator[T, None, None], T | None]:
    """A stream and its first item: whether it can be had is known only then."""
    stream = begin(link, at)
    return stream, next(stream, None)
