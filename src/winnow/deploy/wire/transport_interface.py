"""What every transport offers: a `ServerLink` to those who call, a `WireService` behind those who answer.

A link blocks and may be used by many threads. A service is asynchronous: one server answers hundreds of sites.
"""

from collections.abc import AsyncIterator, Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.messages import FetchBlob, FollowLog, LogLine, PutBlob, Request, Response, UploadedSize

CALL_SECONDS = 30.0
STALL_SECONDS = 60.0
"""Seconds without any data after which a transfer is cancelled."""


class ServerLink(Protocol):
    """A connection to a server. Raises `UnreachableError`, `RequestRefusedError`, or `WireError` for malformed data."""

    def call(self, request: Request, *, timeout: float = CALL_SECONDS) -> Response:
        """The answer, which is never a `RequestRefusal`: that is raised."""

    def fetch(self, request: FetchBlob) -> Generator[bytes, None, None]:
        """The rest of a blob. Closing it ends the transfer."""

    def put(self, head: PutBlob, chunks: Iterable[bytes]) -> UploadedSize: ...

    def follow(self, request: FollowLog) -> Generator[LogLine, None, None]:
        """Ends when the job does, or when it is closed; it may wait long for a line."""

    def close(self) -> None:
        """Open requests end with an `UnreachableError`."""


class WireService(Protocol):
    """What a server does. It may raise a `WinnowError`, such as `RequestRefusedError`, or return a `RequestRefusal`."""

    async def call(self, peer: Peer, request: Request) -> Response: ...

    def fetch(self, peer: Peer, request: FetchBlob) -> AsyncIterator[bytes]: ...

    async def put(self, peer: Peer, head: PutBlob, chunks: AsyncIterator[bytes]) -> UploadedSize: ...

    def follow(self, peer: Peer, request: FollowLog) -> AsyncIterator[LogLine]: ...


class TransportServer(Protocol):
    """A service that can be reached."""

    url: str
    """Where it is reached; its port is known once it has been started."""

    async def start(self) -> None: ...

    async def stop(self, grace: float = 5.0) -> None:
        """No new requests; those under way have `grace` seconds to end."""


Identify: TypeAlias = Callable[[bytes], Peer]
"""Who holds this certificate (PEM), whose chain and key the transport has checked. Raises a `WinnowError`."""

Admit: TypeAlias = Callable[[Peer], str | None]
"""Why this peer is not admitted, such as a revoked certificate; None admits it. It is called at every request."""


@dataclass(frozen=True, kw_only=True)
class Tls:
    """The certificate and key of a party, and the CA it trusts, all PEM."""

    certificate: bytes
    key: bytes
    authority: bytes

    @classmethod
    def of(cls, kit: Kit) -> "Tls":
        return cls(certificate=kit.certificate_pem, key=kit.key_pem, authority=kit.authority_pem)

    def __repr__(self) -> str:
        return "Tls(…)"
