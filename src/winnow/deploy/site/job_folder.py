"""The files of a job at a site. Its worker may write to `work` alone."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from winnow.deploy.site.symlink_safe_move import UntrustedFileError, import_file
from winnow.deploy.wire.messages import WireTask

RESULTS_FOLDER = "results"
"""The folder, inside `work`, in which a job's own code leaves files for its site."""


@dataclass(frozen=True)
class JobFolder:
    path: Path

    @property
    def downloads(self) -> Path:
        """The bundle, and the parts of tasks."""
        return self.path / "parts"

    @property
    def data(self) -> Path:
        """The rows of a database query."""
        return self.path / "data"

    @property
    def replies(self) -> Path:
        """The files of results."""
        return self.path / "replies"

    @property
    def client_state(self) -> Path:
        """The state of clients, and the new state that came with results."""
        return self.path / "kept"

    @property
    def work(self) -> Path:
        return self.path / "work"

    @property
    def output_filter(self) -> Path:
        """Of the process that applies the site's filters to the worker's results."""
        return self.path / "output_filter"

    def create(self) -> None:
        for each in (self.downloads, self.data, self.replies, self.client_state, self.work, self.output_filter):
            each.mkdir(parents=True, exist_ok=True)

    def delete_unneeded(self, needed: set[str]) -> None:
        """Delete the files of results and client state that are not among `needed`."""
        for folder in (self.replies, self.client_state):
            for path in folder.glob("*"):
                if path.name not in needed:
                    path.unlink(missing_ok=True)

    def keep_results(self, target: Path) -> int:
        """Move the regular files that the job's own code left to `target`; how many there were. The job's processes
        must have ended.
        """
        left = self.work / RESULTS_FOLDER
        if left.is_symlink() or not left.is_dir():
            return 0
        found = sorted(each.name for each in os.scandir(left) if each.is_file(follow_symlinks=False))
        imported = self.output_filter / RESULTS_FOLDER
        try:
            for name in found:
                import_file(self.work, str(left / name), imported)
                target.mkdir(parents=True, exist_ok=True)
                shutil.move(imported, target / name)
        except OSError as error:
            raise UntrustedFileError(f"cannot keep the job's results in {target}: {error.strerror}") from error
        return len(found)

    def keep_client_state(self, files: Mapping[int, str], target: Path) -> int:
        """Move what clients keep (a private part, the average among peers) to `target`; for how many clients. `files`
        are the agent's own, by the clients' numbers.
        """
        try:
            for client, name in files.items():
                target.mkdir(parents=True, exist_ok=True)
                shutil.move(self.client_state / name, target / f"client-{client}.safetensors")
        except OSError as error:
            raise UntrustedFileError(f"cannot keep clients' state in {target}: {error.strerror}") from error
        return len(files)


def result_file_name(task: WireTask, client: int) -> str:
    return f"{task.id[:32]}-{client}.safetensors"
