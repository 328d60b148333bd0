"""A server's side of moving blobs: files are read and written in threads, so that other sites need not wait."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator

from winnow.deploy.wire.messages import Blob, PutBlob, UploadedSize
from winnow.deploy.wire.resumable_blob_files import BlobFolder, BlobWriter

MAX_QUEUED_CHUNKS = 2
"""Chunks of one upload that may wait while others are being written."""


async def read_ahead(chunks: Generator[bytes, None, None]) -> AsyncGenerator[bytes, None]:
    """The same chunks, each read in a thread while the last is on its way."""
    ahead = asyncio.create_task(asyncio.to_thread(next, chunks, None))
    try:
        while (chunk := await ahead) is not None:
            ahead = asyncio.create_task(asyncio.to_thread(next, chunks, None))
            yield chunk
    finally:
        await asyncio.wait([ahead])
        chunks.close()


async def receive_blob(spool: BlobFolder, head: PutBlob, chunks: AsyncIterator[bytes], owner: str) -> UploadedSize:
    """Answer a `PutBlob` into a spool folder. Chunks are written while the next are on their way.

    If the stream breaks off, what arrived stays for the next attempt.
    """
    if spool.has(head.blob):
        return UploadedSize(size=head.blob.size)
    writer = await _opened(spool, head, owner)
    writing, waiting = asyncio.create_task(asyncio.sleep(0)), list[bytes]()
    try:
        async for chunk in chunks:
            waiting.append(chunk)
            if writing.done() or len(waiting) == MAX_QUEUED_CHUNKS:
                await writing
                writing, waiting = asyncio.create_task(asyncio.to_thread(_write, writer, waiting)), []
        await writing
        await asyncio.to_thread(_write, writer, waiting)
        await asyncio.to_thread(writer.finish)
    finally:
        await asyncio.wait([writing])
        await asyncio.to_thread(writer.suspend)
    return UploadedSize(size=head.blob.size)


def _write(writer: BlobWriter, chunks: list[bytes]) -> None:
    for chunk in chunks:
        writer.write(chunk)


async def _opened(spool: BlobFolder, head: PutBlob, owner: str) -> BlobWriter:
    """It may take a while, in which the sender may go away; the thread that opens the file does not notice."""
    opening = asyncio.create_task(asyncio.to_thread(spool.open_writer, head.blob, head.offset, owner))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_suspend)
        raise


def _suspend(opening: "asyncio.Task[BlobWriter]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().suspend()


def uploaded_size(spool: BlobFolder, blob: Blob, owner: str) -> UploadedSize:
    """Answer a `Held`."""
    return UploadedSize(size=spool.stored_size(blob, owner))
