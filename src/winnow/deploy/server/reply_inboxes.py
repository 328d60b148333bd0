"""The replies that wait for being folded: on the leader's disk, a folder for each job and site."""

import shutil
from collections.abc import Iterable, Set
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from winnow.deploy.server.config import ServerLimits
from winnow.deploy.wire.blob_folder import BlobFolder
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import ClientResult

MB = 1 << 20
DISCARDED = "gone"


class ReplyInboxes:
    def __init__(self, jobs: Path, limits: ServerLimits) -> None:
        self._jobs = jobs
        self._limits = limits
        self._open: dict[tuple[str, str], BlobFolder] = {}

    def of(self, job: str, site: str) -> BlobFolder:
        key = (job, site)
        if key not in self._open:
            folder = self._jobs / job / "inbox" / site
            self._open[key] = BlobFolder(folder, quota=self._limits.inbox_mb * MB)
        return self._open[key]

    def reply(self, site: str, answer: ClientResult) -> Path | None:
        if answer.blob is None:
            return None
        inbox = self.of(answer.job, site)
        if not inbox.has(answer.blob):
            raise RequestRefusedError(
                f"the blob {answer.blob.digest[:12]} of this answer has not arrived; put it first"
            )
        return inbox.path(answer.blob)

    def discard(self, job: str, site: str, digests: Iterable[str]) -> None:
        """The blobs are not here any more. Large files take long to delete, which `sweep` does."""
        gone = self._jobs / job / DISCARDED
        gone.mkdir(parents=True, exist_ok=True)
        for digest in digests:
            with suppress(FileNotFoundError):
                (self.of(job, site).folder / digest).rename(gone / uuid4().hex)

    def keep_only(self, job: str, site: str, digests: Set[str]) -> None:
        """Discard what an earlier process of the job, or an earlier leader, had been answered and nobody asked again.

        An answer that is just being given loses its blob, too: the site is asked again for it.
        """
        held = {blob.digest for blob in self.of(job, site).blobs()}
        self.discard(job, site, held - digests)

    def sweep(self, job: str) -> None:
        """Delete what was discarded; for a thread."""
        for path in (self._jobs / job / DISCARDED).glob("*"):
            path.unlink(missing_ok=True)

    def clear(self, job: str) -> None:
        """The job is over: of what lies on this disk only the log of its process is of interest. For a thread."""
        for key in [key for key in self._open if key[0] == job]:
            del self._open[key]
        for folder in (self._jobs / job).glob("*/"):
            shutil.rmtree(folder, ignore_errors=True)
