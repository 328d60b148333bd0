"""Where a job's files are at a site. Its process may write to `work` alone."""

from dataclasses import dataclass
from pathlib import Path

from winnow.deploy.wire.messages import WireTask


@dataclass(frozen=True)
class JobFolder:
    path: Path

    @property
    def parts(self) -> Path:
        """What was downloaded: the bundle, and the parts of tasks."""
        return self.path / "parts"

    @property
    def data(self) -> Path:
        """The rows of a database query."""
        return self.path / "data"

    @property
    def replies(self) -> Path:
        """The files of answers that were made."""
        return self.path / "replies"

    @property
    def kept(self) -> Path:
        """What clients keep, and what was proposed to be kept."""
        return self.path / "kept"

    @property
    def work(self) -> Path:
        return self.path / "work"

    @property
    def gate(self) -> Path:
        """Of the process that applies the site's filters to what the other one made."""
        return self.path / "output_filter"

    def make(self) -> None:
        for each in (self.parts, self.data, self.replies, self.kept, self.work, self.gate):
            each.mkdir(parents=True, exist_ok=True)

    def sweep(self, needed: set[str]) -> None:
        """Delete the files of answers and state that nobody mentions any more."""
        for folder in (self.replies, self.kept):
            for path in folder.glob("*"):
                if path.name not in needed:
                    path.unlink(missing_ok=True)


def result_file_name(task: WireTask, client: int) -> str:
    return f"{task.id[:32]}-{client}.safetensors"
