"""Blobs over the network: who may download and upload which, in bounded memory."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

from winnow.deploy.server.blob_store import BlobStore
from winnow.deploy.server.config import ServerLimits
from winnow.deploy.server.reply_blob_folders import MB, ReplyInboxes
from winnow.deploy.server.site_hub import SiteHub
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.atomic_files import read_chunks
from winnow.deploy.wire.blob_transfer_server import read_ahead, receive_blob, uploaded_size
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import Blob, FetchBlob, GetUploadedSize, PutBlob, UploadedSize
from winnow.deploy.wire.resumable_blob_files import BlobFolder

MAX_UPLOADS = 100
"""Bundles of one user, complete or not, that wait to be submitted."""
UPLOAD_EXPIRY_SECONDS = 3600.0
"""After which an upload that is not continued, or not submitted, is deleted."""


@dataclass(frozen=True, kw_only=True)
class BlobTransfers:
    limits: ServerLimits
    state: Path
    blobs: BlobStore
    hub: SiteHub
    inboxes: ReplyInboxes
    count_traffic: Callable[[int, int], None] = lambda _in, _out: None
    """Called with the bytes that were received and sent."""
    _slots: WeakValueDictionary[str, asyncio.Semaphore] = field(default_factory=WeakValueDictionary)
    _uploads: dict[str, BlobFolder] = field(default_factory=dict)

    def uploads(self, person: str) -> BlobFolder:
        """The folder of a user's bundles that wait to be submitted, which has a quota."""
        if person not in self._uploads:
            folder = self.state / "uploads" / person
            self._uploads[person] = BlobFolder(folder, quota=4 * self.limits.bundle_mb * MB, files=MAX_UPLOADS)
        return self._uploads[person]

    def sweep(self) -> None:
        """Delete uploads that were started and not continued; for a thread."""
        for folder in (self.state / "uploads").glob("*/"):
            self.uploads(folder.name).delete_stale(UPLOAD_EXPIRY_SECONDS)

    def events(self, job: str) -> BlobFolder:
        """The folder in which a job's events so far are collected for download."""
        return BlobFolder(self.state / "results" / job)

    async def received_so_far(self, peer: Peer, request: GetUploadedSize) -> UploadedSize:
        spool = self._target_folder(peer, request.job, request.blob)
        return await asyncio.to_thread(uploaded_size, spool, request.blob, peer.name)

    async def put(self, peer: Peer, head: PutBlob, chunks: AsyncIterator[bytes]) -> UploadedSize:
        spool = self._target_folder(peer, head.job, head.blob)
        async with self._slot(peer):
            return await receive_blob(spool, head, self._counted(peer, chunks), peer.name)

    async def _counted(self, peer: Peer, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            self.hub.mark_seen(peer)
            self.count_traffic(len(chunk), 0)
            yield chunk

    async def fetch(self, peer: Peer, request: FetchBlob) -> AsyncGenerator[bytes]:
        if request.offset > request.blob.size:
            raise RequestRefusedError(f"offset {request.offset} is past the end of blob {request.blob.digest[:12]}")
        async with self._slot(peer):
            source = await asyncio.to_thread(self._source, peer, request)
            async with aclosing(read_ahead(source)) as chunks:
                async for chunk in chunks:
                    self.hub.mark_seen(peer)
                    self.count_traffic(0, len(chunk))
                    yield chunk

    def _target_folder(self, peer: Peer, job: str, blob: Blob) -> BlobFolder:
        """The folder into which this peer may upload this blob."""
        if peer.kind == "site":
            self.hub.participation(peer, job)
            _check_size(blob, self.limits.blob_mb)
            return self.inboxes.inbox(job, peer.name)
        if peer.kind == "person":
            _check_size(blob, self.limits.bundle_mb)
            return self.uploads(peer.name)
        raise RequestRefusedError(f"{peer} may not upload blobs")

    def _source(self, peer: Peer, request: FetchBlob) -> Generator[bytes, None, None]:
        return self._for_site(peer, request) if peer.kind == "site" else self._for_person(request)

    def _for_site(self, peer: Peer, request: FetchBlob) -> Generator[bytes, None, None]:
        part = self.hub.participation(peer, request.job)
        if request.blob == part.deploy.bundle:
            return self.blobs.read(request.job, request.blob, request.offset)
        wanted = {blob.digest for task in part.tasks.values() for blob in task.task.parts.values()}
        membership = self.hub.memberships.get(request.job)
        folder = None if membership is None else membership.source.task_blobs
        path = None if folder is None else folder / request.blob.digest
        if request.blob.digest not in wanted or path is None or not path.is_file():
            raise RequestRefusedError(
                f"no task of site {peer.name} in job {request.job} needs blob {request.blob.digest[:12]}"
            )
        return read_chunks(path, request.offset)

    def _for_person(self, request: FetchBlob) -> Generator[bytes, None, None]:
        """A result. Whether the user may have it is checked before."""
        events = self.events(request.job)
        if events.has(request.blob):
            return events.read(request.blob, request.offset)
        if self.blobs.find(request.job, request.blob.digest) != request.blob:
            raise RequestRefusedError(f"job {request.job} has no blob {request.blob.digest[:12]}")
        return self.blobs.read(request.job, request.blob, request.offset)

    def _slot(self, peer: Peer) -> asyncio.Semaphore:
        """To be held during a transfer: a peer with too many under way waits for one to end."""
        return self._slots.setdefault(peer.name, asyncio.Semaphore(self.limits.concurrent_transfers))


def _check_size(blob: Blob, limit_mb: int) -> None:
    if blob.size > limit_mb * MB:
        raise RequestRefusedError(f"a blob of {blob.size} bytes is too large; the limit is {limit_mb} MB")
