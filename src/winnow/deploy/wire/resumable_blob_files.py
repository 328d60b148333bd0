"""A folder of blobs, named by their digests. One that is there is whole and right; one that is on its way is hidden.

What broke off continues where it stopped, also after a restart.
"""

import time
from collections.abc import Generator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from threading import Lock

from winnow.deploy.wire.atomic_files import (
    PARTIAL_SUFFIX,
    WRITE_BACK,
    blob_of,
    make_durable,
    read_chunks,
    start_writing_back,
    wire_errors,
)
from winnow.deploy.wire.errors import BlobDamagedError, StorageFullError, WireError
from winnow.deploy.wire.messages import Blob


class BlobFolder:
    """`quota` bounds the bytes of the folder, `files` how many are in it. All methods may be called from any thread.

    A blob on its way belongs to its sender, `owner`: two who send the same do not write into each other's file, and
    nobody can spoil another's.
    """

    def __init__(self, folder: Path, *, quota: int | None = None, files: int | None = None) -> None:
        self.folder = folder
        self._quota, self._files = quota, files
        self._lock = Lock()
        self._writers: dict[Path, BlobWriter] = {}
        with wire_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def has(self, blob: Blob) -> bool:
        return self._size(self.folder / blob.digest) == blob.size

    def path(self, blob: Blob) -> Path:
        """Where the whole blob is."""
        if not self.has(blob):
            raise WireError(f"blob {blob.digest[:12]} is not stored here")
        return self.folder / blob.digest

    def stored_size(self, blob: Blob, owner: str = "") -> int:
        """How many of its bytes are here already. One that was never checked lacks a byte at least, whatever arrived:
        who sends that has it finished.
        """
        if self.has(blob):
            return blob.size
        return max(0, min(self._size(self._partial(blob, owner)), blob.size - 1))

    def read(self, blob: Blob, offset: int = 0) -> Generator[bytes, None, None]:
        return read_chunks(self.path(blob), offset)

    def open_writer(self, blob: Blob, offset: int, owner: str = "") -> "BlobWriter":
        """A writer that continues at `offset`. It takes over from one whose sender came back before we noticed that it
        had gone.
        """
        partial = self._partial(blob, owner)
        with self._lock:
            if (older := self._writers.get(partial)) is not None:
                older.suspend()
            self._check_room(blob, partial)
            writer = BlobWriter(self, blob, partial, offset)
            self._writers[partial] = writer
        writer.hash_existing()
        return writer

    def adopt(self, path: Path) -> Blob:
        """Move a whole file of this file system in here, under its digest."""
        blob = blob_of(path)
        with wire_errors(path):
            path.replace(self.folder / blob.digest)
        return blob

    def remove(self, blob: Blob) -> None:
        """Forget the blob and what is here of it."""
        with wire_errors(self.folder):
            for path in self.folder.glob(f"*{blob.digest}*"):
                path.unlink(missing_ok=True)

    def delete_stale(self, seconds: float) -> None:
        """Delete what nobody has written to for so long, and at once what holds nothing, unless it is being sent."""
        with self._lock, wire_errors(self.folder):
            for path in self.folder.iterdir():
                with suppress(FileNotFoundError):
                    status = path.stat()
                    old = time.time() - status.st_mtime > seconds
                    if path not in self._writers and (old or status.st_size == 0):
                        path.unlink()

    def blobs(self) -> list[Blob]:
        """All that are whole."""
        with wire_errors(self.folder):
            whole = [path for path in sorted(self.folder.iterdir()) if not path.name.startswith(".")]
            return [Blob(digest=path.name, size=path.stat().st_size) for path in whole]

    def _partial(self, blob: Blob, owner: str) -> Path:
        whose = sha256(owner.encode()).hexdigest()[:16]
        return self.folder / f".{blob.digest}.{whose}{PARTIAL_SUFFIX}"

    def _check_room(self, blob: Blob, partial: Path) -> None:
        if self._quota is None:
            return
        promised = {path: writer.blob.size for path, writer in self._writers.items() if not writer.closed}
        with wire_errors(self.folder):
            present = {path: self._size(path) for path in self.folder.iterdir()}
        if self._files is not None and len(present.keys() - {partial}) >= self._files:
            raise StorageFullError(f"cannot store another blob: {len(present)} are stored; the limit is {self._files}")
        others = sum(size for path, size in {**present, **promised}.items() if path != partial)
        if others + blob.size > self._quota:
            raise StorageFullError(
                f"cannot store a blob of {blob.size} bytes: {others} of {self._quota} bytes are in use"
            )

    @staticmethod
    def _size(path: Path) -> int:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return -1

    def _forget(self, writer: "BlobWriter", partial: Path) -> None:
        if self._writers.get(partial) is writer:
            del self._writers[partial]


class BlobWriter:
    """Writes a blob's chunks to a hidden file; `finish` checks the digest and shows the blob."""

    def __init__(self, spool: BlobFolder, blob: Blob, partial: Path, offset: int) -> None:
        self.blob = blob
        self.closed = False
        self._spool = spool
        self._partial = partial
        self._lock = Lock()
        with wire_errors(partial):
            self._file = partial.open("ab")
        self.size = self._file.tell()
        if offset > min(self.size, blob.size):
            self._close()
            raise WireError(
                f"blob {blob.digest[:12]} cannot resume at byte {offset}: only {self.size} bytes are stored"
            )
        with wire_errors(partial):
            self._file.truncate(offset)
        self.size = self._written_back = offset
        self._digest = sha256()

    def hash_existing(self) -> None:
        """Digest what was here before. It takes seconds where gigabytes were."""
        with self._lock:
            for chunk in read_chunks(self._partial):
                self._digest.update(chunk)

    def write(self, chunk: bytes) -> None:
        with self._lock:
            self._check_open()
            if self.size + len(chunk) > self.blob.size:
                self._discard()
                raise WireError(f"blob {self.blob.digest[:12]} is longer than the declared {self.blob.size} bytes")
            try:
                with wire_errors(self._partial):
                    self._file.write(chunk)
            except WireError:
                self._discard()
                raise
            self._digest.update(chunk)
            self.size += len(chunk)
            if self.size >= self._written_back + WRITE_BACK:
                start_writing_back(self._file, self._written_back, self.size)
                self._written_back = self.size

    def finish(self) -> Path:
        """Where the blob is, now that all of it has been written."""
        with self._lock:
            self._check_open()
            if self.size < self.blob.size:
                self._close()
                raise WireError(
                    f"blob {self.blob.digest[:12]} is incomplete: received {self.size} of {self.blob.size} bytes"
                )
            if self._digest.hexdigest() != self.blob.digest:
                self._discard()
                raise BlobDamagedError(
                    f"blob {self.blob.digest[:12]} is damaged: its digest does not match; send it again"
                )
            return self._show()

    def suspend(self) -> None:
        """Leave what was written for another time."""
        with self._lock:
            self._close()

    def _show(self) -> Path:
        whole = self._spool.folder / self.blob.digest
        try:
            with wire_errors(self._partial):
                make_durable(self._file)
                self._partial.replace(whole)
        except WireError:
            self._discard()
            raise
        self._close()
        return whole

    def _check_open(self) -> None:
        if self.closed:
            raise WireError(f"blob {self.blob.digest[:12]} is being sent again over another connection")

    def _discard(self) -> None:
        self._close()
        self._partial.unlink(missing_ok=True)

    def _close(self) -> None:
        """Never fails: what a full disk did not take is dropped."""
        if self.closed:
            return
        self.closed = True
        try:
            self._file.close()
        except OSError:
            self.size = 0
        if self.size == 0:  # there is nothing to go on with
            self._partial.unlink(missing_ok=True)
        self._spool._forget(self, self._partial)

    def __enter__(self) -> "BlobWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.suspend()
