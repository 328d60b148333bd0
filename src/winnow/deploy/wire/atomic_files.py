"""Files that are whole or absent, also when the disk is full."""

import errno
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from hashlib import sha256
from io import FileIO
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from winnow.deploy.wire.errors import StorageFullError, WireError
from winnow.deploy.wire.messages import Blob

CHUNK = 2**20
"""Bytes that are read, sent and written at a time."""
WRITE_BACK = 8 * CHUNK
PARTIAL_SUFFIX = ".part"
"""The ending of files that are not whole."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def wire_errors(path: Path) -> Iterator[None]:
    """Say in one line when the file system refuses."""
    try:
        yield
    except OSError as error:
        kind = StorageFullError if error.errno in _FULL else WireError
        raise kind(f"cannot use {error.filename or path}: {error.strerror or error}") from error


@contextmanager
def replace_atomically(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to fill, which then takes `path`'s place at once; if that fails, nothing is left of it."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:8]}{PARTIAL_SUFFIX}")
    with wire_errors(path):
        try:
            with temporary.open("xb") as file:
                yield file
                if durable:
                    make_durable(file)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def start_writing_back(file: BinaryIO, begin: int, end: int) -> None:
    """Have the disk begin with these bytes, so that making a large file durable does not take long at its end."""
    os.posix_fadvise(file.fileno(), begin, end - begin, os.POSIX_FADV_DONTNEED)


def make_durable(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def read_chunks(path: Path, offset: int = 0) -> Generator[bytes, None, None]:
    with wire_errors(path), path.open("rb", buffering=0) as file:
        file.seek(offset)
        yield from chunks_of(file)


def chunks_of(file: BinaryIO | FileIO) -> Iterator[bytes]:
    """Yield the rest of an open file."""
    while chunk := file.read(CHUNK):
        yield chunk


def blob_of(path: Path) -> Blob:
    """A file's name as a blob."""
    digest, size = sha256(), 0
    for chunk in read_chunks(path):
        digest.update(chunk)
        size += len(chunk)
    return Blob(digest=digest.hexdigest(), size=size)
