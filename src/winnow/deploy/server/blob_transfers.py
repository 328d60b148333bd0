"""Blobs over the wire: who may fetch and who may put which, and how they move in bounded memory."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

from winnow.deploy.server.blob_store import BlobStore
from winnow.deploy.server.config import ServerLimits
from winnow.deploy.server.queries import Queries
from winnow.deploy.server.reply_inboxes import MB, ReplyInboxes
from winnow.deploy.server.site_hub import SiteHub
from winnow.deploy.server.site_sessions import Participation
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.atomic_files import read_chunks
from winnow.deploy.wire.blob_folder import BlobFolder
from winnow.deploy.wire.blob_transfer_server import read_ahead, receive_blob, uploaded_size
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import Blob, FetchBlob, GetUploadedSize, PutBlob, UploadedSize

MAX_UPLOADS = 100
"""Bundles of one person that lie here, whole or not, until they are submitted."""
UPLOAD_EXPIRY_SECONDS = 3600.0
"""After which an upload that nobody goes on with, or never submits, is deleted."""


@dataclass(frozen=True, kw_only=True)
class BlobTransfers:
    limits: ServerLimits
    state: Path
    blobs: BlobStore
    records: Queries
    hub: SiteHub
    inboxes: ReplyInboxes
    parts: Callable[[str], Path | None]
    """Where the runner of a job puts the blobs of its tasks."""
    moved: Callable[[int, int], None] = lambda _in, _out: None
    """Told of bytes that came in and went out."""
    _busy: WeakValueDictionary[str, asyncio.Semaphore] = field(default_factory=WeakValueDictionary)
    _uploads: dict[str, BlobFolder] = field(default_factory=dict)

    def uploads(self, person: str) -> BlobFolder:
        """Where a person's bundles lie until they are submitted: one folder for all, which keeps to its quota."""
        if person not in self._uploads:
            folder = self.state / "uploads" / person
            self._uploads[person] = BlobFolder(folder, quota=4 * self.limits.bundle_mb * MB, files=MAX_UPLOADS)
        return self._uploads[person]

    def sweep(self) -> None:
        """Delete uploads that were begun and not gone on with; for a thread."""
        for folder in (self.state / "uploads").glob("*/"):
            self.uploads(folder.name).delete_stale(UPLOAD_EXPIRY_SECONDS)

    def events(self, job: str) -> BlobFolder:
        """Where what a job has told so far is put together for downloading."""
        return BlobFolder(self.state / "results" / job)

    async def held(self, peer: Peer, request: GetUploadedSize) -> UploadedSize:
        spool = self._into(peer, request.job, request.blob)
        return await asyncio.to_thread(uploaded_size, spool, request.blob, peer.name)

    async def put(self, peer: Peer, head: PutBlob, chunks: AsyncIterator[bytes]) -> UploadedSize:
        spool = self._into(peer, head.job, head.blob)
        async with self._slot(peer):
            return await receive_blob(spool, head, self._counted(peer, chunks), peer.name)

    async def _counted(self, peer: Peer, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            self.hub.heard_from(peer)
            self.moved(len(chunk), 0)
            yield chunk

    async def fetch(self, peer: Peer, request: FetchBlob) -> AsyncGenerator[bytes]:
        if request.offset > request.blob.size:
            raise RequestRefusedError(f"blob {request.blob.digest[:12]} has no byte {request.offset}")
        async with self._slot(peer):
            source = await asyncio.to_thread(self._source, peer, request)
            async with aclosing(read_ahead(source)) as chunks:
                async for chunk in chunks:
                    self.hub.heard_from(peer)
                    self.moved(0, len(chunk))
                    yield chunk

    def _into(self, peer: Peer, job: str, blob: Blob) -> BlobFolder:
        """The folder that this peer may put this blob into."""
        if peer.kind == "site":
            self._must_take_part(peer, job)
            _check_size(blob, self.limits.blob_mb)
            return self.inboxes.of(job, peer.name)
        if peer.kind == "person":
            _check_size(blob, self.limits.bundle_mb)
            return self.uploads(peer.name)
        raise RequestRefusedError(f"{peer} has nothing to put here")

    def _source(self, peer: Peer, request: FetchBlob) -> Generator[bytes, None, None]:
        return self._for_site(peer, request) if peer.kind == "site" else self._for_person(request)

    def _for_site(self, peer: Peer, request: FetchBlob) -> Generator[bytes, None, None]:
        part = self._must_take_part(peer, request.job)
        if request.blob == part.deploy.bundle:
            return self.blobs.read(request.job, request.blob, request.offset)
        wanted = {blob.digest for task in part.tasks.values() for blob in task.task.parts.values()}
        folder = self.parts(request.job)
        path = None if folder is None else folder / request.blob.digest
        if request.blob.digest not in wanted or path is None or not path.is_file():
            raise RequestRefusedError(
                f"no task of site {peer.name} in job {request.job} needs blob {request.blob.digest[:12]}"
            )
        return read_chunks(path, request.offset)

    def _for_person(self, request: FetchBlob) -> Generator[bytes, None, None]:
        """A result. Whether the person may have it was asked before."""
        events = self.events(request.job)
        if events.has(request.blob):
            return events.read(request.blob, request.offset)
        if self.blobs.held(request.job, request.blob.digest) != request.blob:
            raise RequestRefusedError(f"job {request.job} has no blob {request.blob.digest[:12]}")
        return self.blobs.read(request.job, request.blob, request.offset)

    def _must_take_part(self, peer: Peer, job: str) -> Participation:
        desk = self.hub.desks.get(peer.name)
        part = None if desk is None else desk.parts.get(job)
        if part is None:
            raise RequestRefusedError(f"site {peer.name} has no part in job {job}, or the job is over")
        return part

    def _slot(self, peer: Peer) -> asyncio.Semaphore:
        """To be held while something moves: who has enough under way waits for one to end."""
        return self._busy.setdefault(peer.name, asyncio.Semaphore(self.limits.transfers))


def _check_size(blob: Blob, limit_mb: int) -> None:
    if blob.size > limit_mb * MB:
        raise RequestRefusedError(f"a blob of {blob.size} bytes is too large; {limit_mb} MB are the most")
