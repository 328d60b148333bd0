"""What users may ask of a server: each request is checked against the policy and audited with its outcome."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from uuid import uuid4

import msgspec

from winnow.core import WinnowError
from winnow.deploy.server.application_store import ApplicationStore
from winnow.deploy.server.audit_reading import AuditReading
from winnow.deploy.server.blob_transfers import BlobTransfers
from winnow.deploy.server.database_reads import Queries
from winnow.deploy.server.database_writes import ENDED, RUNNING
from winnow.deploy.server.job_log_writer import JobLogs
from winnow.deploy.server.job_submission import JobSubmission, ServerTrust
from winnow.deploy.server.lease import LeaseLostError
from winnow.deploy.server.scheduler import Scheduler
from winnow.deploy.server.site_hub import SiteHub
from winnow.deploy.server.site_stop_and_restart import SiteControl
from winnow.deploy.server.tables import SiteRow
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.trust.server_policy import NO_TARGET, Command, CommandTarget, allows
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.message_codec import MAX_MESSAGE
from winnow.deploy.wire.messages import (
    AbortJob,
    Acknowledgement,
    ApplicationList,
    AuditPage,
    Blob,
    ControlSite,
    DecideApplication,
    FollowLog,
    GetJobResult,
    JobInfo,
    JobList,
    JobResult,
    ListJobs,
    LogLine,
    OpenLogin,
    ReadAudit,
    Resources,
    SiteInfo,
    SiteList,
    SubmitJob,
)

FOLLOW_POLL_SECONDS = 5.0
"""Seconds after which the log of a followed job is read again, even if no change was reported."""

SHOWN_DIGITS = 16
"""Of an application, in the audit log."""

MESSAGE_OVERHEAD = 4096
"""Bytes of a message around the jobs that it lists."""


@dataclass(frozen=True, kw_only=True)
class UserCommands:
    trust: ServerTrust
    queries: Queries
    hub: SiteHub
    job_logs: JobLogs
    scheduler: Scheduler
    transfers: BlobTransfers
    submission: JobSubmission
    site_control: SiteControl
    read_audit: AuditReading
    applications: ApplicationStore

    async def authorise(
        self, peer: Peer, command: Command, target: CommandTarget = NO_TARGET, *, audit_rejections_only: bool = False
    ) -> None:
        """Raise unless the policy allows it."""
        decision = allows(self.trust.policy(), peer, command, target)
        if not decision.allowed:
            await self.job_logs.audit_request(peer, command, target.name, f"rejected: {decision.reason}")
            raise RequestRefusedError(decision.reason)
        if not audit_rejections_only:
            await self.job_logs.audit_request(peer, command, target.name, "accepted")

    # Jobs -------------------------------------------------------------------------------------------------------------

    async def submit(self, peer: Peer, request: SubmitJob) -> Acknowledgement:
        target = CommandTarget(name=request.job, organisation=peer.organisation, owner=peer.name)
        await self.authorise(peer, "submit", target, audit_rejections_only=True)  # its outcome is audited below
        try:
            note = await self.submission.submit(peer, request)
        except WinnowError as error:
            await self.job_logs.audit_request(peer, "submit", request.job, f"rejected: {error}")
            if not isinstance(error, LeaseLostError):
                await self.submission.forget_upload(peer, request.bundle)
            raise
        await self.submission.forget_upload(peer, request.bundle)
        await self.job_logs.audit(peer, "submit", request.job, f"accepted: {note}")
        return Acknowledgement(note=note)

    async def jobs(self, peer: Peer, request: ListJobs) -> JobList:
        await self.authorise(peer, "jobs", await self._target(request.job))
        states = await asyncio.to_thread(self.queries.job_states, request.job)
        return JobList(jobs=latest_that_fit([self._with_live_state(state) for state in states]))

    def _with_live_state(self, state: JobInfo) -> JobInfo:
        """Of a running job, with who is excluded and what it is waiting for."""
        membership = self.hub.memberships.get(state.job)
        if membership is None or state.status != RUNNING:
            return state
        return msgspec.structs.replace(state, reason=membership.summary(), absent_sites=membership.exclusions())

    async def abort(self, peer: Peer, request: AbortJob) -> Acknowledgement:
        await self.authorise(peer, "abort", await self._target(request.job))
        reason = f"{peer.name}: {request.reason}" if request.reason else f"by {peer.name}"
        if not await self.scheduler.abort(request.job, reason):
            return Acknowledgement(note="the job had already ended")
        await self.job_logs.audit(peer, "abort", request.job, "aborted")
        return Acknowledgement(note="aborted")

    async def result(self, peer: Peer, request: GetJobResult) -> JobResult:
        await self.authorise(peer, "download", await self._target(request.job))
        row = await asyncio.to_thread(self.queries.job, request.job)
        assert row is not None
        last = await asyncio.to_thread(self.queries.last_round, request.job)
        return JobResult(
            config=row.config,
            bundle=Blob(digest=row.bundle, size=row.bundle_size),
            events=await asyncio.to_thread(self._events, request.job),
            checkpoint=None if last is None else last.checkpoint,
            output=await asyncio.to_thread(self.queries.outputs, request.job),
        )

    def _events(self, job: str) -> Blob:
        folder = self.transfers.events(job)
        path = folder.folder / f".{uuid4().hex}"
        self.queries.write_events(job, path)
        blob = folder.adopt(path)
        for older in folder.blobs():
            if older.digest != blob.digest:
                folder.remove(older)
        return blob

    async def follow(self, peer: Peer, request: FollowLog) -> AsyncGenerator[LogLine]:
        await self.authorise(peer, "logs", await self._target(request.job))
        number = request.first
        while True:
            row = await asyncio.to_thread(self.queries.job, request.job)
            lines = await asyncio.to_thread(self.queries.lines, request.job, number)
            for line in lines:
                yield line
                number = line.number + 1
            if not lines and (row is None or row.status in ENDED or not request.wait):
                return
            if not lines:
                await self.job_logs.wait_for_change(request.job, FOLLOW_POLL_SECONDS)

    async def authorise_upload(self, peer: Peer) -> None:
        await self.authorise(
            peer, "submit", CommandTarget(organisation=peer.organisation, owner=peer.name), audit_rejections_only=True
        )

    async def authorise_download(self, peer: Peer, job: str) -> None:
        await self.authorise(peer, "download", await self._target(job), audit_rejections_only=True)

    async def _target(self, job: str | None) -> CommandTarget:
        if job is None:
            return NO_TARGET
        row = await asyncio.to_thread(self.queries.job, job)
        if row is None:
            raise RequestRefusedError(f"there is no job called {job}")
        return CommandTarget(name=job, organisation=row.organisation, owner=row.submitter)

    # Sites ------------------------------------------------------------------------------------------------------------

    async def sites(self, peer: Peer) -> SiteList:
        await self.authorise(peer, "sites")
        rows = await asyncio.to_thread(self.queries.sites)
        return SiteList(sites=[self._site(row) for row in rows])

    def _site(self, row: SiteRow) -> SiteInfo:
        session = self.hub.sites.get(row.site)
        connection = None if session is None else session.connection
        return SiteInfo(
            site=row.site,
            organisation=row.organisation,
            connected=connection is not None,
            revoked=bool(row.certificate) and self.trust.revoked(Peer.of_pem(row.certificate)),
            last_seen=(None if session is None else session.last_seen_utc) or row.seen,
            winnow_version=row.winnow,
            data=msgspec.msgpack.decode(row.data, type=list[str]),
            free=msgspec.msgpack.decode(row.resources, type=Resources) if connection is None else connection.free,
            jobs=[] if session is None else sorted(session.participations),
        )

    async def audit(self, peer: Peer, request: ReadAudit) -> AuditPage:
        await self.authorise(peer, "audit")
        return await asyncio.to_thread(self.read_audit, request.after)

    async def list_applications(self, peer: Peer) -> ApplicationList:
        await self.authorise(peer, "applications")
        return ApplicationList(applications=await asyncio.to_thread(self.applications.list))

    async def decide(self, peer: Peer, request: DecideApplication) -> Acknowledgement:
        await self.authorise(peer, "applications", CommandTarget(name=request.application[:SHOWN_DIGITS]))
        if request.package:
            note = await asyncio.to_thread(self.applications.approve, request.application, request.package)
        else:
            note = await asyncio.to_thread(self.applications.refuse, request.application, request.reason)
        await self.job_logs.audit(peer, "application", request.application[:SHOWN_DIGITS], note)
        return Acknowledgement(note=note)

    async def check_login(self, peer: Peer, request: OpenLogin) -> None:
        """A link is for the person who asks for it: a person of this project, by the certificate of the connection."""
        if peer.kind != "person" or Peer.of_pem(request.certificate) != peer:
            raise RequestRefusedError(f"{peer} gets no link to the pages: it is for a person, and that person's own")
        await self.job_logs.audit_request(peer, "login link", "", "accepted")

    async def control(self, peer: Peer, request: ControlSite) -> Acknowledgement:
        rows = {row.site: row for row in await asyncio.to_thread(self.queries.sites)}
        if request.site not in rows:
            raise RequestRefusedError(f"no site called {request.site} has ever connected")
        target = CommandTarget(name=request.site, organisation=rows[request.site].organisation)
        await self.authorise(peer, "control", target)
        answer = await self.site_control.control(request.site, restart=request.restart)
        what = "restart" if request.restart else "stop"
        if answer is None:
            return Acknowledgement(note=f"{request.site} was asked to {what} and has not replied yet; see winnow sites")
        if not answer.accepted:
            raise RequestRefusedError(f"{request.site} does not {what}: {answer.reason or 'it gave no reason'}")
        return Acknowledgement(note=f"{request.site} {what}s")


def latest_that_fit(states: Sequence[JobInfo]) -> list[JobInfo]:
    """The latest jobs that fit one message, the oldest first."""
    chosen: list[JobInfo] = []
    remaining = MAX_MESSAGE - MESSAGE_OVERHEAD
    for state in reversed(states):
        remaining -= len(msgspec.msgpack.encode(state))
        if remaining < 0:
            break
        chosen.append(state)
    return chosen[::-1]
