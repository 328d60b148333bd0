"""Files that a job's own code leaves for its site: they stay when all else of the job is deleted, if the site wants."""

import os
import shutil
from pathlib import Path

from winnow.deploy.site.import_untrusted import UntrustedFileError, import_file
from winnow.deploy.site.job_folder import JobFolder

RESULTS_FOLDER = "results"
"""The folder, inside its own, in which a job's process leaves them."""


def keep_results(job: JobFolder, place: Path) -> int:
    """Move the plain files to `place`; how many there were. The job's process must have ended."""
    left = job.work / RESULTS_FOLDER
    if left.is_symlink() or not left.is_dir():
        return 0
    found = sorted(each.name for each in os.scandir(left) if each.is_file(follow_symlinks=False))
    taken = job.gate / RESULTS_FOLDER
    try:
        for name in found:
            import_file(job.work, str(left / name), taken)
            place.mkdir(parents=True, exist_ok=True)
            shutil.move(taken, place / name)
    except OSError as error:
        raise UntrustedFileError(f"what the job left cannot be kept in {place}: {error.strerror}") from error
    return len(found)
