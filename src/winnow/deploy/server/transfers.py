"""Blobs over the wire: who may fetch and who may put which, and how they move in bounded memory."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

from winnow.deploy.server.blobs import Blobs
from winnow.deploy.server.config import Limits
from winnow.deploy.server.desks import Part
from winnow.deploy.server.hub import Hub
from winnow.deploy.server.inboxes import MB, Inboxes
from winnow.deploy.server.records import Records
from winnow.deploy.trust.identity import Peer
from winnow.deploy.wire.blobs import SpoolFolder
from winnow.deploy.wire.errors import Refused
from winnow.deploy.wire.files import read_chunks
from winnow.deploy.wire.messages import Blob, Fetch, Held, Put, Received
from winnow.deploy.wire.serving import held_blob, reading_ahead, receive_blob

UPLOADS = 100
"""Bundles of one person that lie here, whole or not, until they are submitted."""
UPLOAD_SECONDS = 3600.0
"""After which an upload that nobody goes on with, or never submits, is deleted."""


@dataclass(frozen=True, kw_only=True)
class Transfers:
    limits: Limits
    state: Path
    blobs: Blobs
    records: Records
    hub: Hub
    inboxes: Inboxes
    parts: Callable[[str], Path | None]
    """Where the runner of a job puts the blobs of its tasks."""
    moved: Callable[[int, int], None] = lambda _in, _out: None
    """Told of bytes that came in and went out."""
    _busy: WeakValueDictionary[str, asyncio.Semaphore] = field(default_factory=WeakValueDictionary)
    _uploads: dict[str, SpoolFolder] = field(default_factory=dict)

    def uploads(self, person: str) -> SpoolFolder:
        """Where a person's bundles lie until they are submitted: one folder for all, which keeps to its quota."""
        if person not in self._uploads:
            folder = self.state / "uploads" / person
            self._uploads[person] = SpoolFolder(folder, quota=4 * self.limits.bundle_mb * MB, files=UPLOADS)
        return self._uploads[person]

    def sweep(self) -> None:
        """Delete uploads that were begun and not gone on with; for a thread."""
        for folder in (self.state / "uploads").glob("*/"):
            self.uploads(folder.name).sweep(UPLOAD_SECONDS)

    def events(self, job: str) -> SpoolFolder:
        """Where what a job has told so far is put together for downloading."""
        return SpoolFolder(self.state / "results" / job)

    async def held(self, peer: Peer, request: Held) -> Received:
        spool = self._into(peer, request.job, request.blob)
        return await asyncio.to_thread(held_blob, spool, request.blob, peer.name)

    async def put(self, peer: Peer, head: Put, chunks: AsyncIterator[bytes]) -> Received:
        spool = self._into(peer, head.job, head.blob)
        async with self._slot(peer):
            return await receive_blob(spool, head, self._counted(peer, chunks), peer.name)

    async def _counted(self, peer: Peer, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            self.hub.heard_from(peer)
            self.moved(len(chunk), 0)
            yield chunk

    async def fetch(self, peer: Peer, request: Fetch) -> AsyncGenerator[bytes]:
        if request.offset > request.blob.size:
            raise Refused(f"blob {request.blob.digest[:12]} has no byte {request.offset}")
        async with self._slot(peer):
            source = await asyncio.to_thread(self._source, peer, request)
            async with aclosing(reading_ahead(source)) as chunks:
                async for chunk in chunks:
                    self.hub.heard_from(peer)
                    self.moved(0, len(chunk))
                    yield chunk

    def _into(self, peer: Peer, job: str, blob: Blob) -> SpoolFolder:
        """The folder that this peer may put this blob into."""
        if peer.kind == "site":
            self._must_take_part(peer, job)
            _check_size(blob, self.limits.blob_mb)
            return self.inboxes.of(job, peer.name)
        if peer.kind == "person":
            _check_size(blob, self.limits.bundle_mb)
            return self.uploads(peer.name)
        raise Refused(f"{peer} has nothing to put here")

    def _source(self, peer: Peer, request: Fetch) -> Generator[bytes, None, None]:
        return self._for_site(peer, request) if peer.kind == "site" else self._for_person(request)

    def _for_site(self, peer: Peer, request: Fetch) -> Generator[bytes, None, None]:
        part = self._must_take_part(peer, request.job)
        if request.blob == part.deploy.bundle:
            return self.blobs.read(request.job, request.blob, request.offset)
        wanted = {blob.digest for task in part.tasks.values() for blob in task.task.parts.values()}
        folder = self.parts(request.job)
        path = None if folder is None else folder / request.blob.digest
        if request.blob.digest not in wanted or path is None or not path.is_file():
            raise Refused(f"no task of site {peer.name} in job {request.job} needs blob {request.blob.digest[:12]}")
        return read_chunks(path, request.offset)

    def _for_person(self, request: Fetch) -> Generator[bytes, None, None]:
        """A result. Whether the person may have it was asked before."""
        events = self.events(request.job)
        if events.has(request.blob):
            return events.read(request.blob, request.offset)
        if self.blobs.held(request.job, request.blob.digest) != request.blob:
            raise Refused(f"job {request.job} has no blob {request.blob.digest[:12]}")
        return self.blobs.read(request.job, request.blob, request.offset)

    def _must_take_part(self, peer: Peer, job: str) -> Part:
        desk = self.hub.desks.get(peer.name)
        part = None if desk is None else desk.parts.get(job)
        if part is None:
            raise Refused(f"site {peer.name} has no part in job {job}, or the job is over")
        return part

    def _slot(self, peer: Peer) -> asyncio.Semaphore:
        """To be held while something moves: who has enough under way waits for one to end."""
        return self._busy.setdefault(peer.name, asyncio.Semaphore(self.limits.transfers))


def _check_size(blob: Blob, limit_mb: int) -> None:
    if blob.size > limit_mb * MB:
        raise Refused(f"a blob of {blob.size} bytes is too large; {limit_mb} MB are the most")
