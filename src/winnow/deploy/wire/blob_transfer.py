"""Moving blobs over a link, from where it stopped the last time, a chunk at a time."""

import random
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from winnow.deploy.wire.atomic_files import CHUNK, chunks_of, wire_errors
from winnow.deploy.wire.errors import RequestRefusedError, StorageFullError, UnreachableError, WireError
from winnow.deploy.wire.messages import Blob, FetchBlob, GetUploadedSize, PutBlob, UploadedSize
from winnow.deploy.wire.resumable_blob_files import BlobFolder, BlobWriter
from winnow.deploy.wire.transport_interface import ServerLink

ATTEMPTS = 5
"""Without a byte of progress."""
PAUSE = 0.5
MAX_QUEUED_WRITES = 3
"""Chunks that may wait for being written."""


def download_blob(link: ServerLink, job: str, blob: Blob, spool: BlobFolder) -> Path:
    """Have the blob in the spool folder. If that fails, what arrived is kept for the next attempt."""
    attempt = _Attempts()
    while not spool.has(blob):
        held = spool.stored_size(blob)
        try:
            with (
                spool.open_writer(blob, held) as writer,
                closing(link.fetch(FetchBlob(job=job, blob=blob, offset=held))) as chunks,
            ):
                _write_all(writer, chunks)
                writer.finish()
        except (UnreachableError, RequestRefusedError, WireError) as error:
            attempt.record_failure(error, spool.stored_size(blob))
    return spool.path(blob)


def upload_blob(link: ServerLink, job: str, path: Path, blob: Blob) -> None:
    """Have the server hold the blob, of which this file is a copy. A small one is sent without asking first how much of
    it is there.
    """
    attempt = _Attempts()
    held = 0 if blob.size <= CHUNK else _held(link, job, blob)
    while held < blob.size or not blob.size:
        try:
            # Closed here: a transfer that breaks off leaves its chunks where it was.
            with wire_errors(path), path.open("rb") as file:
                file.seek(held)
                answer = link.put(PutBlob(job=job, blob=blob, offset=held), chunks_of(file))
            if answer.size >= blob.size:
                return
        except (UnreachableError, RequestRefusedError) as error:
            attempt.record_failure(error, held)
        held = _held(link, job, blob)


def _write_all(writer: BlobWriter, chunks: Iterable[bytes]) -> None:
    """Chunks are digested and written while the next ones arrive."""
    with ThreadPoolExecutor(1) as thread:
        writing = deque[Future[None]]()
        for chunk in chunks:
            writing.append(thread.submit(writer.write, chunk))
            if len(writing) > MAX_QUEUED_WRITES:
                writing.popleft().result()
        for each in writing:
            each.result()


def _held(link: ServerLink, job: str, blob: Blob) -> int:
    answer = link.call(GetUploadedSize(job=job, blob=blob))
    if not isinstance(answer, UploadedSize):
        raise WireError(f"expected UploadedSize from the server, received {type(answer).__name__}")
    return answer.size


class _Attempts:
    """Counts those that brought nothing."""

    def __init__(self) -> None:
        self._most = 0
        self._vain = 0

    def record_failure(self, error: Exception, held: int) -> None:
        """Wait a little, or raise the error when it has been enough, or is final."""
        self._vain = 0 if held > self._most else self._vain + 1
        self._most = max(self._most, held)
        final = isinstance(error, StorageFullError) or (
            isinstance(error, RequestRefusedError) and not (error.retry or error.leader)
        )
        if final or self._vain >= ATTEMPTS:
            raise error
        time.sleep(self._vain * PAUSE * random.uniform(0.5, 1.0))
