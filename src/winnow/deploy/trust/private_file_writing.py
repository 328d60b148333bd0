"""Files that are whole or absent, private where they hold a key."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from winnow.deploy.trust.errors import TrustError

PUBLIC, PRIVATE = 0o644, 0o600
LARGEST = 1 << 20
"""No file of a kit comes near this; a larger one is not read."""


def write_bytes_atomically(path: Path, content: bytes, mode: int = PUBLIC) -> None:
    """Put the file in place at once, with these permissions from its first byte on; durable on return."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)
    sync_folder(path.parent)


def restrict_umask() -> None:
    """From now on no other user of the machine may read or list what this process, or one that it starts, makes."""
    os.umask(0o077)


def make_private_folder(path: Path) -> None:
    """Make the folder, or take others' rights to it away: what lies in it need not be private itself."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)


def sync_folder(folder: Path) -> None:
    """Make a renaming durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_small(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise TrustError(f"{path} is larger than {LARGEST} bytes, the limit for such a file")
    return content


@contextmanager
def hold_lock_file(path: Path) -> Iterator[None]:
    """Hold a lock file, which the kernel gives back when the holder ends, however it ends."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrustError(f"{path.parent} is in use by another process; try again when it has finished") from None
        yield
