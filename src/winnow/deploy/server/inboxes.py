"""The replies that wait for being folded: on the leader's disk, a folder for each job and site."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from winnow.deploy.server.config import Limits
from winnow.deploy.wire.blobs import SpoolFolder
from winnow.deploy.wire.errors import Refused
from winnow.deploy.wire.messages import Answer, Blob

MB = 1 << 20


class Inboxes:
    def __init__(self, jobs: Path, limits: Limits) -> None:
        self._jobs = jobs
        self._limits = limits
        self._open: dict[tuple[str, str], SpoolFolder] = {}

    def of(self, job: str, site: str) -> SpoolFolder:
        key = (job, site)
        if key not in self._open:
            folder = self._jobs / job / "inbox" / site
            self._open[key] = SpoolFolder(folder, quota=self._limits.inbox_mb * MB)
        return self._open[key]

    def reply(self, site: str, answer: Answer) -> Path | None:
        if answer.blob is None:
            return None
        inbox = self.of(answer.job, site)
        if not inbox.has(answer.blob):
            raise Refused(f"the blob {answer.blob.digest[:12]} of this answer has not arrived; put it first")
        return inbox.path(answer.blob)

    def discard(self, job: str, site: str, digests: Iterable[str]) -> None:
        for digest in digests:
            self.of(job, site).remove(Blob(digest=digest, size=0))

    def clear(self, job: str) -> None:
        """The job is over: of what lies on this disk only the log of its process is of interest."""
        for key in [key for key in self._open if key[0] == job]:
            del self._open[key]
        for folder in (self._jobs / job).glob("*/"):
            shutil.rmtree(folder, ignore_errors=True)
