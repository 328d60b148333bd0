"""A small server for the tests of the wire, with real certificates, in a thread of its own."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption

from winnow.deploy.trust.authority import Authority, key_pem
from winnow.deploy.trust.identity import Peer, utc_now
from winnow.deploy.trust.project import Server as ServerParty
from winnow.deploy.trust.project import Site as SiteParty
from winnow.deploy.wire.blobs import SpoolFolder
from winnow.deploy.wire.drivers import serve
from winnow.deploy.wire.errors import Refused
from winnow.deploy.wire.messages import (
    Blob,
    Done,
    Fetch,
    Follow,
    Held,
    Jobs,
    Line,
    Put,
    Received,
    Refusal,
    Report,
    Request,
    Response,
    Result,
    Sites,
    Status,
)
from winnow.deploy.wire.serving import held_blob, receive_blob, send_blob
from winnow.deploy.wire.transport import Server, Tls


@cache
def authority(project: str = "trial") -> Authority:
    return Authority.create(project, utc_now() - timedelta(days=100))


@cache
def papers(name: str, project: str = "trial", age: int = 0, days: int = 30) -> Tls:
    """Of `server`, or of a site of any other name; `age` days old and good for `days`."""
    key = ec.generate_private_key(ec.SECP256R1())
    if name == "server":
        party: ServerParty | SiteParty = ServerParty(name=name, organisation="hub", hosts=("127.0.0.1",))
    else:
        party = SiteParty(name=name, organisation="ward")
    ca = authority(project)
    certificate = ca.issue(party, key.public_key(), None, utc_now() - timedelta(days=age), days)
    return Tls(
        certificate=certificate.public_bytes(Encoding.PEM),
        key=key_pem(key, NoEncryption()),
        authority=ca.certificate.public_bytes(Encoding.PEM),
    )


class SpoolService:
    """Holds blobs; answers `Report` with Done, waits at `Status`, refuses `Sites`, and fails at `Jobs`."""

    def __init__(self, folder: Path) -> None:
        self.spool = SpoolFolder(folder)
        self.callers: list[Peer] = []
        self.leader = ""
        self.waiting = threading.Event()
        self.gone = threading.Event()

    async def call(self, peer: Peer, request: Request) -> Response:
        self.callers.append(peer)
        match request:
            case _ if self.leader:
                return Refusal(reason="I do not lead", leader=self.leader)
            case Held(blob=blob):
                return held_blob(self.spool, blob, peer.name)
            case Report(lines=lines):
                return Done(note="".join(lines))
            case Status():
                return await self._wait_for_ever()
            case Sites():
                raise Refused("no sites\nfor you", again=False)
            case Result():
                return Refusal(reason="not yet", again=True)
            case Jobs():
                raise ZeroDivisionError("a secret")
        return Done()

    async def _wait_for_ever(self) -> Response:
        self.waiting.set()
        try:
            await asyncio.sleep(3600)
        finally:
            self.gone.set()
        return Done()

    def fetch(self, peer: Peer, request: Fetch) -> AsyncIterator[bytes]:
        return send_blob(self.spool, request)

    async def put(self, peer: Peer, head: Put, chunks: AsyncIterator[bytes]) -> Received:
        return await receive_blob(self.spool, head, chunks, peer.name)

    async def follow(self, peer: Peer, request: Follow) -> AsyncIterator[Line]:
        try:
            for number in range(request.first, 5):
                yield Line(number=number, at=0.0, source="server", kind="log", text=f"line {number}")
        except GeneratorExit:
            self.gone.set()
            raise
        if request.wait:
            await self._wait_for_ever()

    def hold(self, content: bytes) -> Blob:
        path = self.spool.folder / ".made"
        path.write_bytes(content)
        return self.spool.adopt(path)


@contextmanager
def serving(
    url: str, service: SpoolService, *, revoked: frozenset[str] = frozenset(), stall: float = 60.0
) -> Iterator[Server]:
    """The running server; its own thread ends with the context."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait(coroutine):  # type: ignore[no-untyped-def]
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(20)

    async def start() -> Server:
        server = serve(
            url,
            papers("server"),
            service,
            identify=Peer.of_pem,
            admit=lambda peer: f"{peer.name} was revoked" if peer.name in revoked else None,
            stall=stall,
        )
        await server.start()
        return server

    try:
        server = wait(start())
        yield server
        wait(server.stop(0.2))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
