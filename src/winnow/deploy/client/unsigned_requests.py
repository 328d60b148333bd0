"""What anybody may ask of a server over a link, whoever answers for it: the policy decides there."""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from winnow.core import ConfigError, RunError
from winnow.deploy.wire.blob_transfer import download_blob
from winnow.deploy.wire.errors import WireError
from winnow.deploy.wire.messages import (
    AbortJob,
    Acknowledgement,
    ApplicationInfo,
    ApplicationList,
    AuditPage,
    Blob,
    ControlSite,
    DecideApplication,
    FollowLog,
    GetJobResult,
    GetStatus,
    JobInfo,
    JobList,
    JobResult,
    ListApplications,
    ListJobs,
    ListSites,
    LogLine,
    Name,
    ReadAudit,
    Request,
    ServerStatus,
    SiteInfo,
    SiteList,
)
from winnow.deploy.wire.resumable_blob_files import BlobFolder
from winnow.deploy.wire.transport_interface import ServerLink

FINAL_STATES = ("finished", "failed", "aborted")

ResponseType = TypeVar("ResponseType", bound=msgspec.Struct)


def checked_name(job: str) -> str:
    """The name of a job, unless no job can be called that."""
    try:
        return msgspec.convert(job, Name)
    except msgspec.ValidationError:
        raise ConfigError(
            f"{job!r} cannot be the name of a job: it must have at most 100 letters (a to z), digits, '.', '_' and '-' "
            "and begin with a letter or digit"
        ) from None


class ServerRequests:
    """Requests that need no signature. Use it in a `with`, or close it."""

    def __init__(self, link: ServerLink) -> None:
        self._link = link

    def job(self, name: str) -> "SubmittedJob":
        return SubmittedJob(self, checked_name(name))

    def jobs(self) -> list[JobInfo]:
        return self._ask(ListJobs(), JobList).jobs

    def sites(self) -> list[SiteInfo]:
        return self._ask(ListSites(), SiteList).sites

    def stop_site(self, site: str) -> str:
        return self._ask(ControlSite(site=site, restart=False), Acknowledgement).note

    def restart_site(self, site: str) -> str:
        return self._ask(ControlSite(site=site, restart=True), Acknowledgement).note

    def status(self) -> ServerStatus:
        return self._ask(GetStatus(), ServerStatus)

    def applications(self) -> list[ApplicationInfo]:
        """Those who applied for a kit, as they signed it."""
        return self._ask(ListApplications(), ApplicationList).applications

    def refuse_application(self, application: str, reason: str = "") -> str:
        return self._ask(DecideApplication(application=application, reason=reason), Acknowledgement).note

    def approve_application(self, application: str, package: bytes) -> str:
        """Hand the server what the applicant may collect: the kit that `ProjectOwner.approve` made."""
        return self._ask(DecideApplication(application=application, package=package), Acknowledgement).note

    def audit_page(self, after: int) -> AuditPage:
        """Entries of the server's audit log after so many, unchecked; `FetchedAudit` checks all of them."""
        return self._ask(ReadAudit(after=after), AuditPage)

    def close(self) -> None:
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # For jobs ---------------------------------------------------------------------------------------------------------

    def _ask(self, request: Request, expected: type[ResponseType]) -> ResponseType:
        answer = self._link.call(request)
        if not isinstance(answer, expected):
            raise WireError(
                f"the server answered {type(request).__name__} with {type(answer).__name__}, not {expected.__name__}"
            )
        return answer

    def result(self, job: str) -> JobResult:
        """What there is of a job: its bundle, its events, and the files of its output."""
        return self._ask(GetJobResult(job=job), JobResult)

    def fetch(self, job: str, blob: Blob, spool: BlobFolder) -> Path:
        """A file of a job's, in the spool folder."""
        return download_blob(self._link, job, blob, spool)


@dataclass(frozen=True)
class SubmittedJob:
    """A submitted job, by its name."""

    _connection: ServerRequests
    name: str

    def state(self) -> JobInfo:
        told = self._connection._ask(ListJobs(job=self.name), JobList).jobs
        if [each.job for each in told] != [self.name]:
            raise WireError(f"the server was asked about job {self.name}, and told of {len(told)} jobs or another one")
        return told[0]

    def lines(self, first: int = 0, *, follow: bool = True) -> Iterator[LogLine]:
        """Its log and events; with `follow` until it ends, over failovers too."""
        return self._connection._link.follow(FollowLog(job=self.name, first=first, wait=follow))

    def wait(self, seconds: float | None = None) -> JobInfo:
        """Until it has ended; raises a RunError if it failed, was aborted, or takes longer."""
        begun, pause = time.monotonic(), 0.2
        while (state := self.state()).status not in FINAL_STATES:
            if seconds is not None and time.monotonic() > begun + seconds:
                raise RunError(f"job {self.name} is still {state.status} after {seconds:g} seconds: {state.reason}")
            time.sleep(pause)
            pause = min(5.0, 1.5 * pause)  # every question stands in the server's audit
        if state.status != "finished":
            raise RunError(f"job {self.name} {state.status}: {state.reason}")
        return state

    def abort(self, reason: str = "") -> str:
        return self._connection._ask(AbortJob(job=self.name, reason=reason), Acknowledgement).note

    def download(self, out: str | Path) -> Path:
        """What there is of it so far as a run folder, which `winnow show` and `winnow report` read."""
        from winnow.deploy.client.download import write_run_folder  # noqa: PLC0415 - it loads torch
        from winnow.runs import check_folder_is_free  # noqa: PLC0415 - whoever downloads nothing needs no run folders

        check_folder_is_free(Path(out))
        connection, state = self._connection, self._connection.result(self.name)
        with tempfile.TemporaryDirectory() as folder:
            spool = BlobFolder(Path(folder))
            blobs = {"events": state.events, "checkpoint": state.checkpoint, **state.output}
            files = {
                name: download_blob(connection._link, self.name, blob, spool)
                for name, blob in blobs.items()
                if blob is not None
            }
            job = self.state()
            finished = job.status == "finished"
            return write_run_folder(Path(out), state.config, files, submitted=job.submitted, finished=finished)
