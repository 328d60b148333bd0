"""Files that pass from a job's process, which may run untrusted code, to the agent.

A path could lead out of the process's folder, by a link at any point, to a file that is then sent away. So the path is
walked one folder at a time without following links, the file is moved to where only the agent can rename it, and only
then checked.
"""

import os
import shutil
import stat
from pathlib import Path

from winnow.core.errors import WinnowError
from winnow.deploy.trust.private_file_writing import PRIVATE, sync_folder


class UntrustedFileError(WinnowError):
    """A job's process named a file that it may not hand over."""


def import_file(folder: Path, claimed: str, target: Path) -> None:
    """Move the file that a process claims to have written, somewhere in its `folder`, to `target`."""
    try:
        parts = Path(claimed).relative_to(folder).parts
    except ValueError:
        parts = ()
    if not parts or ".." in parts:
        raise UntrustedFileError("the job's process named a file outside its folder")
    try:
        _move(folder, parts, target)
    except OSError as error:
        raise UntrustedFileError(f"cannot import a file of the job's process: {error.strerror}") from error
    status = target.lstat()
    if stat.S_ISDIR(status.st_mode):
        shutil.rmtree(target)
    elif not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        target.unlink()
    else:
        target.chmod(PRIVATE)  # a process chooses the modes of its files
        with target.open("rb") as file:
            os.fsync(file.fileno())
        sync_folder(target.parent)
        return
    raise UntrustedFileError("the job's process named something that is not a regular file")


def _move(folder: Path, parts: tuple[str, ...], target: Path) -> None:
    parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        for part in parts[:-1]:
            deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            os.close(parent)
            parent = deeper
        os.rename(parts[-1], target, src_dir_fd=parent)
    finally:
        os.close(parent)
