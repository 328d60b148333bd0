"""The store of bundles, checkpoints and outputs: files beside SQLite, rows where servers share no disk.

A blob counts as stored once its row in `blobs` is there, which is written last. Blobs are named by job and digest, and
two leaders make the same ones. So they are put and removed under the lease's lock, by its holder: a leader that was
replaced without noticing can neither remove what its successor is putting, nor add to it.
"""

from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from winnow.core import WinnowError
from winnow.deploy.server.lease import FencedDatabase
from winnow.deploy.server.tables import BlobChunkRow, BlobRow
from winnow.deploy.trust.private_file_writing import sync_folder
from winnow.deploy.wire.atomic_files import CHUNK, blob_of, read_chunks, replace_atomically, wire_errors
from winnow.deploy.wire.messages import Blob

CHUNKS_PER_DELETE = 16
"""Chunks that one transaction deletes: it must be short."""


class BlobMissingError(WinnowError):
    """A blob is not, or no longer, stored."""


class BlobStore(Protocol):
    """A store of blobs; blocking, for threads."""

    def put(self, job: str, path: Path) -> Blob:
        """Store a copy of the file, durably."""
        ...

    def find(self, job: str, digest: str) -> Blob | None: ...

    def read(self, job: str, blob: Blob, offset: int = 0) -> Generator[bytes, None, None]:
        """The blob from `offset` on, in chunks."""
        ...

    def remove(self, job: str, digests: Iterable[str]) -> None: ...

    def digests(self, job: str) -> set[str]:
        """Of all blobs of the job, complete or not."""
        ...


def open_blob_store(fence: FencedDatabase, folder: Path) -> BlobStore:
    """The store that fits the database, for one leader."""
    return DatabaseBlobStore(fence) if fence.database.shared else FileBlobStore(fence, folder)


class _Rows:
    """The rows of stored blobs."""

    def __init__(self, fence: FencedDatabase) -> None:
        self._fence, self._database = fence, fence.database

    def find(self, job: str, digest: str) -> Blob | None:
        with self._database.read_session() as session:
            row = session.get(BlobRow, (job, digest))
            return None if row is None else Blob(digest=row.digest, size=row.size)

    @staticmethod
    def _record(session: Session, job: str, blob: Blob) -> None:
        session.merge(BlobRow(job=job, digest=blob.digest, size=blob.size))

    def _recorded(self, job: str) -> set[str]:
        with self._database.read_session() as session:
            return set(session.scalars(select(BlobRow.digest).where(BlobRow.job == job)))

    @staticmethod
    def _forget(session: Session, job: str, digest: str) -> None:
        session.execute(delete(BlobRow).where(BlobRow.job == job, BlobRow.digest == digest))


class FileBlobStore(_Rows):
    """Blobs as files <folder>/<job>/<digest>."""

    def __init__(self, fence: FencedDatabase, folder: Path) -> None:
        super().__init__(fence)
        self._folder = folder

    def put(self, job: str, path: Path) -> Blob:
        blob = blob_of(path)
        if self.find(job, blob.digest) is None:
            self._copy(path, job, blob)
        return blob

    def read(self, job: str, blob: Blob, offset: int = 0) -> Generator[bytes, None, None]:
        path = self._path(job, blob.digest)
        if not path.exists():
            raise BlobMissingError(f"job {job}: blob {blob.digest[:12]} is not stored here")
        return read_chunks(path, offset)

    def remove(self, job: str, digests: Iterable[str]) -> None:
        for digest in digests:
            with self._fence.write_session() as session:
                self._forget(session, job, digest)
                self._path(job, digest).unlink(missing_ok=True)

    def digests(self, job: str) -> set[str]:
        return self._recorded(job) | {path.name for path in (self._folder / job).glob("*")}

    def _path(self, job: str, digest: str) -> Path:
        return self._folder / job / digest

    def _copy(self, source: Path, job: str, blob: Blob) -> None:
        """The copy is made before the lease is locked, and takes its place within."""
        target = self._path(job, blob.digest)
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = target.with_name(f".{blob.digest}.{uuid4().hex[:8]}")
        with replace_atomically(copy) as file:
            for piece in read_chunks(source):
                file.write(piece)
        try:
            with self._fence.write_session() as session, wire_errors(target):
                copy.replace(target)
                sync_folder(target.parent)
                self._record(session, job, blob)
        finally:
            copy.unlink(missing_ok=True)


class DatabaseBlobStore(_Rows):
    """Blobs as rows of 1 MiB, each written and read in a transaction of its own: memory and locks stay small."""

    def put(self, job: str, path: Path) -> Blob:
        blob = blob_of(path)
        if self.find(job, blob.digest) is None:
            for number, piece in enumerate(read_chunks(path)):
                self._put_chunk(job, blob, number, piece)
            with self._fence.write_session() as session:
                self._record(session, job, blob)
        return blob

    def read(self, job: str, blob: Blob, offset: int = 0) -> Generator[bytes, None, None]:
        if self.find(job, blob.digest) is None:
            raise BlobMissingError(f"job {job}: blob {blob.digest[:12]} is not stored here")
        while offset < blob.size:
            number, skipped = divmod(offset, CHUNK)
            wanted = select(BlobChunkRow.data).where(
                BlobChunkRow.job == job, BlobChunkRow.digest == blob.digest, BlobChunkRow.number == number
            )
            with self._database.read_session() as session:
                piece = session.scalar(wanted)
            if piece is None:
                raise BlobMissingError(f"job {job}: blob {blob.digest[:12]} was removed while being read")
            yield piece[skipped:]
            offset += len(piece) - skipped

    def remove(self, job: str, digests: Iterable[str]) -> None:
        for digest in digests:
            with self._fence.write_session() as session:
                self._forget(session, job, digest)
            while self._remove_chunks(job, digest):
                pass

    def _remove_chunks(self, job: str, digest: str) -> bool:
        """A few: deleting gigabytes takes longer than the lease may stay locked."""
        which = (BlobChunkRow.job == job, BlobChunkRow.digest == digest)
        some = select(BlobChunkRow.number).where(*which).limit(CHUNKS_PER_DELETE)
        with self._fence.write_session() as session:
            numbers = list(session.scalars(some))
            session.execute(delete(BlobChunkRow).where(*which, BlobChunkRow.number.in_(numbers)))
        return bool(numbers)

    def digests(self, job: str) -> set[str]:
        with self._database.read_session() as session:
            pieces = session.scalars(select(BlobChunkRow.digest).where(BlobChunkRow.job == job).distinct())
            return self._recorded(job) | set(pieces)

    def _put_chunk(self, job: str, blob: Blob, number: int, piece: bytes) -> None:
        """A chunk that is there already is the same: a server that broke off, or that was replaced, left it."""
        chunk = insert(BlobChunkRow).values(job=job, digest=blob.digest, number=number, data=piece)
        with self._fence.write_session() as session:
            session.execute(chunk.on_conflict_do_nothing())
