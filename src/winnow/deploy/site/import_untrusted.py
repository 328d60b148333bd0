"""Files that pass from a job's process, which may run a stranger's code, to the agent. Its word counts for little.

A name could lead out of the folder, by links in any place, to something that is then sent away. So the way is walked
one folder at a time without following links, the file is moved to where only the agent can change names, and only then
looked at.
"""

import os
import shutil
import stat
from pathlib import Path

from winnow.core.errors import WinnowError
from winnow.deploy.trust.private_files import PRIVATE, sync_folder


class UntrustedFileError(WinnowError):
    """What a job's process handed over is not what it may hand over."""


def import_file(folder: Path, claimed: str, target: Path) -> None:
    """Move the file that a process says it has written, somewhere in its `folder`, to `target`."""
    try:
        parts = Path(claimed).relative_to(folder).parts
    except ValueError:
        parts = ()
    if not parts or ".." in parts:
        raise UntrustedFileError("the job's process handed over a file outside of its folder")
    try:
        _move(folder, parts, target)
    except OSError as error:
        raise UntrustedFileError(
            f"the job's process handed over a file that cannot be taken: {error.strerror}"
        ) from error
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
    raise UntrustedFileError("the job's process handed over something that is no plain file")


def _move(folder: Path, parts: tuple[str, ...], target: Path) -> None:
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        for part in parts[:-1]:
            deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
            os.close(place)
            place = deeper
        os.rename(parts[-1], target, src_dir_fd=place)
    finally:
        os.close(place)
