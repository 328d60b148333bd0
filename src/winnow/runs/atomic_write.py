"""Files that are whole or absent, and a lock that dies with its holder."""

import fcntl
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from winnow.core import RunError, WinnowWarning

TEMPORARY = ".tmp"
LOCK_ATTEMPTS, LOCK_RETRY_SECONDS = 5, 0.02


def is_leftover(path: Path) -> bool:
    """Whether a process that was killed while writing left this: we name such files x.tmp, safetensors .tmpXXXX."""
    return path.name.endswith(TEMPORARY) or path.name.startswith(TEMPORARY)


@contextmanager
def one_line_errors(path: Path) -> Iterator[None]:
    """Tell the user in one line when the file system refuses."""
    try:
        yield
    except OSError as error:
        raise RunError(_refusal(error, Path(error.filename) if isinstance(error.filename, str) else path)) from error


def _refusal(error: OSError, path: Path) -> str:
    """What is wrong with the path, and what to do where that is known."""
    said = f"cannot use {path}: {error.strerror or error}"
    if isinstance(error, IsADirectoryError):
        return f"{said}; name a file"
    if isinstance(error, FileExistsError | NotADirectoryError):
        file = next((each for each in (path, *path.parents) if each.is_file()), path)
        return f"{said}; {file} is a file, and a folder is needed here: name another one"
    if isinstance(error, FileNotFoundError) and not path.parent.is_dir():
        return f"{said}; create the folder {path.parent}, or name another file"
    return said


@contextmanager
def warn_if_unwritten(what: str, remedy: str) -> Iterator[None]:
    """What is written here can be made again: where the file system refuses, the result stands without it."""
    try:
        yield
    except RunError as error:
        warnings.warn(f"{what} could not be written ({error}); {remedy}", WinnowWarning, stacklevel=3)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` fill a temporary file, then put it in place at once; a reader sees the old file or the new one."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        if temporary.is_symlink():  # in a stranger's folder it may lead to any file of the user's
            temporary.unlink()
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:  # on a full disk, what was written of it would stand in the way of everything else
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename = str(path)  # the one that the user knows
        raise


def write_text_atomically(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


class FileLock:
    """An exclusive claim on a file, which the kernel gives back when the holder ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        try:
            self._take(path)
        except BaseException:
            self._file.close()
            raise

    def _take(self, path: Path) -> None:
        for attempts_left in reversed(range(LOCK_ATTEMPTS)):  # `is_locked` holds the lock for a moment
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if attempts_left:
                    time.sleep(LOCK_RETRY_SECONDS)
        raise RunError(f"{path.parent} is in use by another process; wait for it to finish or choose another --out")

    def release(self) -> None:
        self._file.close()


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of this file now."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False
