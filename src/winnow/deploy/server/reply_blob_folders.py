"""Replies that wait to be aggregated: on the leader's disk, a folder for each job and site."""

import shutil
from collections.abc import Iterable, Set
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from winnow.deploy.server.config import ServerLimits
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import Blob
from winnow.deploy.wire.resumable_blob_files import BlobFolder

MB = 1 << 20
DISCARDED = "gone"


class ReplyInboxes:
    def __init__(self, jobs: Path, limits: ServerLimits) -> None:
        self._jobs = jobs
        self._limits = limits
        self._open: dict[tuple[str, str], BlobFolder] = {}

    def inbox(self, job: str, site: str) -> BlobFolder:
        key = (job, site)
        if key not in self._open:
            folder = self._jobs / job / "inbox" / site
            self._open[key] = BlobFolder(folder, quota=self._limits.inbox_mb * MB)
        return self._open[key]

    def reply_path(self, site: str, job: str, blob: Blob) -> Path:
        inbox = self.inbox(job, site)
        if not inbox.has(blob):
            raise RequestRefusedError(f"blob {blob.digest[:12]} of this reply has not been uploaded; upload it first")
        return inbox.path(blob)

    def discard(self, job: str, site: str, digests: Iterable[str]) -> None:
        """Move blobs out of the way. Large files take long to delete, which `sweep` does."""
        discarded = self._jobs / job / DISCARDED
        discarded.mkdir(parents=True, exist_ok=True)
        for digest in digests:
            with suppress(FileNotFoundError):
                (self.inbox(job, site).folder / digest).rename(discarded / uuid4().hex)

    def discard_others(self, job: str, site: str, digests: Set[str]) -> None:
        """Discard replies to an earlier process of the job, or an earlier leader, that were not asked for again.

        A reply that is just being submitted loses its blob, too: the site is asked for it again.
        """
        stored = {blob.digest for blob in self.inbox(job, site).blobs()}
        self.discard(job, site, stored - digests)

    def sweep(self, job: str) -> None:
        """Delete what was discarded; for a thread."""
        for path in (self._jobs / job / DISCARDED).glob("*"):
            path.unlink(missing_ok=True)

    def clear(self, job: str) -> None:
        """The job has ended: delete all but the log of its process. For a thread."""
        for key in [key for key in self._open if key[0] == job]:
            del self._open[key]
        for folder in (self._jobs / job).glob("*/"):
            shutil.rmtree(folder, ignore_errors=True)
