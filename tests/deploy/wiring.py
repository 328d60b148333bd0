"""A small server for the tests of the wire, with real certificates, in a thread of its own."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption
from transport_server import running_server

from winnow.deploy.trust.certificate_authority import CertificateAuthority, key_pem
from winnow.deploy.trust.peer_identity import Peer, utc_now
from winnow.deploy.trust.project_file import ProjectServer as ServerParty
from winnow.deploy.trust.project_file import ProjectSite as SiteParty
from winnow.deploy.wire.blob_transfer_server import read_ahead, receive_blob, uploaded_size
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import (
    AbortJob,
    Acknowledgement,
    Blob,
    FetchBlob,
    FollowLog,
    GetJobResult,
    GetStatus,
    GetUploadedSize,
    ListJobs,
    ListSites,
    LogLine,
    PutBlob,
    Request,
    RequestRefusal,
    Response,
    UploadedSize,
)
from winnow.deploy.wire.resumable_blob_files import BlobFolder
from winnow.deploy.wire.transport_interface import Tls, TransportServer


@cache
def authority(project: str = "trial") -> CertificateAuthority:
    return CertificateAuthority.create(project, utc_now() - timedelta(days=100))


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
    """Holds blobs; acknowledges `AbortJob`, waits at `GetStatus`, refuses `ListSites`, and fails at `ListJobs`."""

    def __init__(self, folder: Path) -> None:
        self.spool = BlobFolder(folder)
        self.callers: list[Peer] = []
        self.leader = ""
        self.waiting = threading.Event()
        self.gone = threading.Event()

    async def call(self, peer: Peer, request: Request) -> Response:
        self.callers.append(peer)
        match request:
            case _ if self.leader:
                return RequestRefusal(reason="I do not lead", leader=self.leader)
            case GetUploadedSize(blob=blob):
                return uploaded_size(self.spool, blob, peer.name)
            case AbortJob(reason=reason):
                return Acknowledgement(note=reason)
            case GetStatus():
                return await self._wait_for_ever()
            case ListSites():
                raise RequestRefusedError("no sites\nfor you", retry=False)
            case GetJobResult():
                return RequestRefusal(reason="not yet", retry=True)
            case ListJobs():
                raise ZeroDivisionError("a secret")
        return Acknowledgement()

    async def _wait_for_ever(self) -> Response:
        self.waiting.set()
        try:
            await asyncio.sleep(3600)
        finally:
            self.gone.set()
        return Acknowledgement()

    def fetch(self, peer: Peer, request: FetchBlob) -> AsyncIterator[bytes]:
        return read_ahead(self.spool.read(request.blob, request.offset))

    async def put(self, peer: Peer, head: PutBlob, chunks: AsyncIterator[bytes]) -> UploadedSize:
        return await receive_blob(self.spool, head, chunks, peer.name)

    async def follow(self, peer: Peer, request: FollowLog) -> AsyncIterator[LogLine]:
        try:
            for number in range(request.first, 5):
                yield LogLine(number=number, at=0.0, source="server", kind="log", text=f"line {number}")
        except GeneratorExit:
            self.gone.set()
            raise
        if request.wait:
            await self._wait_for_ever()

    def hold(self, content: bytes) -> Blob:
        path = self.spool.folder / ".made"
        path.write_bytes(content)
        return self.spool.adopt(path)


def serving(
    url: str, service: SpoolService, *, revoked: frozenset[str] = frozenset(), stall: float = 60.0
) -> AbstractContextManager[TransportServer]:
    def admit(peer: Peer) -> str | None:
        return f"{peer.name} was revoked" if peer.name in revoked else None

    return running_server(url, papers("server"), service, admit=admit, stall=stall)
