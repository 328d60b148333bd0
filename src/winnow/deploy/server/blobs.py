"""Where bundles, checkpoints and outputs are kept: in files beside SQLite, in rows where servers share no disk.

A blob counts as held once its row in `blobs` is there, which is written last. Blobs are named by job and digest.
"""

from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Protocol

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert

from winnow.core import WinnowError
from winnow.deploy.server.database import Database
from winnow.deploy.server.tables import BlobRow, Chunk
from winnow.deploy.trust.files import sync_folder
from winnow.deploy.wire.files import CHUNK, blob_of, read_chunks, replacing
from winnow.deploy.wire.messages import Blob


class BlobMissingError(WinnowError):
    """A blob is not, or no longer, there."""


class Blobs(Protocol):
    """A store of blobs; blocking, for threads."""

    def put(self, job: str, path: Path) -> Blob:
        """Keep a copy of the file, durably."""
        ...

    def held(self, job: str, digest: str) -> Blob | None: ...

    def read(self, job: str, blob: Blob, offset: int = 0) -> Generator[bytes, None, None]:
        """The blob from `offset` on, in chunks."""
        ...

    def remove(self, job: str, digests: Iterable[str]) -> None: ...

    def digests(self, job: str) -> set[str]:
        """Of all that lies here of the job's blobs, whole or not."""
        ...


def open_blobs(database: Database, folder: Path) -> Blobs:
    """The store that fits the database."""
    return DatabaseBlobs(database) if database.shared else FileBlobs(database, folder)


class _Rows:
    """The rows that say what is held."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def held(self, job: str, digest: str) -> Blob | None:
        with self._database.reading() as session:
            row = session.get(BlobRow, (job, digest))
            return None if row is None else Blob(digest=row.digest, size=row.size)

    def _record(self, job: str, blob: Blob) -> None:
        with self._database.writing() as session:
            session.merge(BlobRow(job=job, digest=blob.digest, size=blob.size))

    def _recorded(self, job: str) -> set[str]:
        with self._database.reading() as session:
            return set(session.scalars(select(BlobRow.digest).where(BlobRow.job == job)))

    def _forget(self, job: str, digest: str) -> None:
        with self._database.writing() as session:
            session.execute(delete(BlobRow).where(BlobRow.job == job, BlobRow.digest == digest))


class FileBlobs(_Rows):
    """Blobs as files <folder>/<job>/<digest>."""

    def __init__(self, database: Database, folder: Path) -> None:
        super().__init__(database)
        self._folder = folder

    def put(self, job: str, path: Path) -> Blob:
        blob = blob_of(path)
        if self.held(job, blob.digest) is None:
            self._copy(path, self._path(job, blob.digest))
            self._record(job, blob)
        return blob

    def read(self, job: str, blob: Blob, offset: int = 0) -> Generator[bytes, None, None]:
        path = self._path(job, blob.digest)
        if not path.exists():
            raise BlobMissingError(f"{job}: {blob.digest[:12]} is not held here")
        return read_chunks(path, offset)

    def remove(self, job: str, digests: Iterable[str]) -> None:
        for digest in digests:
            self._forget(job, digest)
            self._path(job, digest).unlink(missing_ok=True)

    def digests(self, job: str) -> set[str]:
        return self._recorded(job) | {path.name for path in (self._folder / job).glob("*")}

    def _path(self, job: str, digest: str) -> Path:
        return self._folder / job / digest

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as file:
            for piece in read_chunks(source):
                file.write(piece)
        sync_folder(target.parent)


class DatabaseBlobs(_Rows):
    """Blobs as rows of 1 MiB, each written and read in a transaction of its own: memory and locks stay small."""

    def put(self, job: str, path: Path) -> Blob:
        blob = blob_of(path)
        if self.held(job, blob.digest) is None:
            for number, piece in enumerate(read_chunks(path)):
                self._put_chunk(job, blob, number, piece)
            self._record(job, blob)
        return blob

    def read(self, job: str, blob: Blob, offset: int = 0) -> Generator[bytes, None, None]:
        if self.held(job, blob.digest) is None:
            raise BlobMissingError(f"{job}: {blob.digest[:12]} is not held here")
        while offset < blob.size:
            number, skipped = divmod(offset, CHUNK)
            wanted = select(Chunk.data).where(Chunk.job == job, Chunk.digest == blob.digest, Chunk.number == number)
            with self._database.reading() as session:
                piece = session.scalar(wanted)
            if piece is None:
                raise BlobMissingError(f"{job}: {blob.digest[:12]} was removed while it was read")
            yield piece[skipped:]
            offset += len(piece) - skipped

    def remove(self, job: str, digests: Iterable[str]) -> None:
        for digest in digests:
            self._forget(job, digest)
            with self._database.writing() as session:
                session.execute(delete(Chunk).where(Chunk.job == job, Chunk.digest == digest))

    def digests(self, job: str) -> set[str]:
        with self._database.reading() as session:
            pieces = session.scalars(select(Chunk.digest).where(Chunk.job == job).distinct())
            return self._recorded(job) | set(pieces)

    def _put_chunk(self, job: str, blob: Blob, number: int, piece: bytes) -> None:
        """A chunk that is there already is the same: a server that broke off, or that was replaced, left it."""
        chunk = insert(Chunk).values(job=job, digest=blob.digest, number=number, data=piece)
        with self._database.writing() as session:
            session.execute(chunk.on_conflict_do_nothing())
