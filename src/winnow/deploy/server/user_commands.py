"""What people may ask of a server: each request is judged by the policy and noted in the audit with its outcome."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import msgspec
from cryptography import x509

from winnow.core import WinnowError
from winnow.deploy.jobs.bundle_format import Bundle, read_bundle
from winnow.deploy.server.blob_store import BlobStore
from winnow.deploy.server.blob_transfers import BlobTransfers
from winnow.deploy.server.job_logs import JobLogs
from winnow.deploy.server.job_spec import JobSpec, read_job_spec
from winnow.deploy.server.leader_writes import ENDED, QUEUED, RUNNING, LeaderWrites, NewLogLine
from winnow.deploy.server.lease import LeaseLostError
from winnow.deploy.server.queries import Queries
from winnow.deploy.server.scheduler import Scheduler
from winnow.deploy.server.site_hub import SiteHub
from winnow.deploy.server.tables import JobRow, SiteRow
from winnow.deploy.trust.peer_identity import Peer, utc_now
from winnow.deploy.trust.revocation_list import RevocationList
from winnow.deploy.trust.server_policy import NO_TARGET, Command, CommandTarget, ServerPolicy, allows
from winnow.deploy.trust.signing import MAX_JOB_AGE_DAYS, Signature, check_job_age, verify
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.message_codec import MAX_MESSAGE
from winnow.deploy.wire.messages import (
    MAX_TEXT,
    AbortJob,
    Acknowledgement,
    Blob,
    ControlSite,
    FollowLog,
    GetJobResult,
    JobInfo,
    JobList,
    JobResult,
    ListJobs,
    LogLine,
    Resources,
    SiteInfo,
    SiteList,
    SubmitJob,
)

FOLLOW_POLL_SECONDS = 5.0
"""Seconds after which one who follows a job looks again, even if nobody said that there is something new."""

MESSAGE_OVERHEAD = 4096
"""Bytes of a message for what is around the jobs that it lists."""


@dataclass(frozen=True, kw_only=True)
class ServerTrust:
    """Whom this server believes, as of now."""

    authority: x509.Certificate
    revocations: Callable[[], RevocationList]
    policy: Callable[[], ServerPolicy]
    job_days: float = MAX_JOB_AGE_DAYS
    now: Callable[[], datetime] = utc_now

    def revoked(self, peer: Peer) -> bool:
        return peer.serial in self.revocations().serials

    def author(self, bundle: Bundle) -> Peer:
        """Who signed the bundle, not too long ago."""
        signature = Signature(certificate=bundle.certificate, value=bundle.signature)
        author = verify(signature, bundle.signed, self.authority, self.revocations(), self.now())
        check_job_age(bundle.issued, self.now(), self.job_days)
        return author


@dataclass(frozen=True, kw_only=True)
class UserCommands:
    trust: ServerTrust
    ledger: LeaderWrites
    records: Queries
    blobs: BlobStore
    hub: SiteHub
    journal: JobLogs
    scheduler: Scheduler
    transfers: BlobTransfers

    async def authorise(
        self, peer: Peer, command: Command, target: CommandTarget = NO_TARGET, *, quietly: bool = False
    ) -> None:
        """Raise unless the policy allows it. Refusals are always noted, what is allowed unless `quietly`."""
        decision = allows(self.trust.policy(), peer, command, target)
        if not decision.allowed:
            await self.journal.audit_request(peer, command, target.name, f"refused: {decision.reason}")
            raise RequestRefusedError(decision.reason)
        if not quietly:
            await self.journal.audit_request(peer, command, target.name, "allowed")

    # Jobs -------------------------------------------------------------------------------------------------------------

    async def submit(self, peer: Peer, request: SubmitJob) -> Acknowledgement:
        target = CommandTarget(name=request.job, organisation=peer.organisation, owner=peer.name)
        await self.authorise(peer, "submit", target, quietly=True)  # what comes of it is noted
        try:
            note = await self._submit(peer, request)
        except WinnowError as error:
            await self.journal.audit_request(peer, "submit", request.job, f"refused: {error}")
            if not isinstance(error, LeaseLostError):
                await self._forget_upload(peer, request.bundle)
            raise
        await self._forget_upload(peer, request.bundle)
        await self.journal.audit(peer, "submit", request.job, note)
        return Acknowledgement(note=note)

    async def _submit(self, peer: Peer, request: SubmitJob) -> str:
        known = await asyncio.to_thread(self.records.job, request.job)
        if known is not None:
            return self._same(known, peer, request)
        uploads = self.transfers.uploads(peer.name)
        if not uploads.has(request.bundle):
            raise RequestRefusedError(f"the bundle of {request.job} has not arrived; put it first")
        path = uploads.path(request.bundle)
        bundle, order = await asyncio.to_thread(self._examine, path, peer)
        await asyncio.to_thread(self.blobs.put, request.job, path)
        row = JobRow(
            job=request.job,
            title=order.title,
            status=QUEUED,
            reason="",
            submitter=peer.name,
            organisation=peer.organisation,
            role=peer.role,
            priority=order.wishes.priority,
            round=0,
            rounds=order.rounds,
            config=bundle.config,
            bundle=request.bundle.digest,
            bundle_size=request.bundle.size,
            metrics=msgspec.msgpack.encode({}),
        )
        line = NewLogLine(source="server", kind="log", text=f"submitted by {peer}")
        if not await asyncio.to_thread(self.ledger.add_job, row, line):
            return "known already"
        self.scheduler.add(row, order)
        return "queued"

    async def _forget_upload(self, peer: Peer, bundle: Blob) -> None:
        """Whatever became of it; one that has not arrived as a whole may be on its way."""
        uploads = self.transfers.uploads(peer.name)
        if uploads.has(bundle):
            await asyncio.to_thread(uploads.remove, bundle)

    def _examine(self, path: Path, peer: Peer) -> tuple[Bundle, JobSpec]:
        """Read a bundle, check its signature, and what it asks for; for a thread."""
        bundle = read_bundle(path.read_bytes())
        author = self.trust.author(bundle)
        if (author.name, author.organisation) != (peer.name, peer.organisation):
            raise RequestRefusedError(
                f"the job was signed by {author.name}, not by {peer.name}, who submits it; sign it yourself"
            )
        if len(bundle.config) > MAX_TEXT:
            raise RequestRefusedError(f"the job's configuration is longer than {MAX_TEXT} characters")
        return bundle, read_job_spec(bundle)

    @staticmethod
    def _same(known: JobRow, peer: Peer, request: SubmitJob) -> str:
        if (known.submitter, known.bundle) != (peer.name, request.bundle.digest):
            raise RequestRefusedError(f"there is another job called {request.job}; choose another name")
        return "known already"

    async def jobs(self, peer: Peer, request: ListJobs) -> JobList:
        await self.authorise(peer, "jobs", await self._target(request.job))
        states = await asyncio.to_thread(self.records.states, request.job)
        return JobList(jobs=latest_that_fit([self._as_of_now(state) for state in states]))

    def _as_of_now(self, state: JobInfo) -> JobInfo:
        """Of a job that runs, with the sites that are left out and those it waits for."""
        attendance = self.hub.attendance(state.job)
        if attendance is None or state.status != RUNNING:
            return state
        return msgspec.structs.replace(state, reason=attendance.told(), absent_sites=attendance.absences())

    async def abort(self, peer: Peer, request: AbortJob) -> Acknowledgement:
        await self.authorise(peer, "abort", await self._target(request.job))
        reason = f"{peer.name}: {request.reason}" if request.reason else f"by {peer.name}"
        if not await self.scheduler.abort(request.job, reason):
            return Acknowledgement(note="it had ended already")
        await self.journal.audit(peer, "abort", request.job, "aborted")
        return Acknowledgement(note="aborted")

    async def result(self, peer: Peer, request: GetJobResult) -> JobResult:
        await self.authorise(peer, "download", await self._target(request.job))
        row = await asyncio.to_thread(self.records.job, request.job)
        assert row is not None
        last = await asyncio.to_thread(self.records.last_round, request.job)
        return JobResult(
            config=row.config,
            bundle=Blob(digest=row.bundle, size=row.bundle_size),
            events=await asyncio.to_thread(self._events, request.job),
            checkpoint=None if last is None else last.checkpoint,
            output=await asyncio.to_thread(self.records.outputs, request.job),
        )

    def _events(self, job: str) -> Blob:
        folder = self.transfers.events(job)
        path = folder.folder / f".{uuid4().hex}"
        self.records.write_events(job, path)
        blob = folder.adopt(path)
        for older in folder.blobs():
            if older.digest != blob.digest:
                folder.remove(older)
        return blob

    async def follow(self, peer: Peer, request: FollowLog) -> AsyncGenerator[LogLine]:
        await self.authorise(peer, "logs", await self._target(request.job))
        number = request.first
        while True:
            row = await asyncio.to_thread(self.records.job, request.job)
            lines = await asyncio.to_thread(self.records.lines, request.job, number)
            for line in lines:
                yield line
                number = line.number + 1
            if not lines and (row is None or row.status in ENDED or not request.wait):
                return
            if not lines:
                await self.journal.news(request.job, FOLLOW_POLL_SECONDS)

    async def may_put(self, peer: Peer) -> None:
        await self.authorise(
            peer, "submit", CommandTarget(organisation=peer.organisation, owner=peer.name), quietly=True
        )

    async def may_fetch(self, peer: Peer, job: str) -> None:
        await self.authorise(peer, "download", await self._target(job), quietly=True)

    async def _target(self, job: str | None) -> CommandTarget:
        if job is None:
            return NO_TARGET
        row = await asyncio.to_thread(self.records.job, job)
        if row is None:
            raise RequestRefusedError(f"there is no job called {job}")
        return CommandTarget(name=job, organisation=row.organisation, owner=row.submitter)

    # Sites ------------------------------------------------------------------------------------------------------------

    async def sites(self, peer: Peer) -> SiteList:
        await self.authorise(peer, "sites")
        rows = await asyncio.to_thread(self.records.sites)
        return SiteList(sites=[self._site(row) for row in rows])

    def _site(self, row: SiteRow) -> SiteInfo:
        desk = self.hub.desks.get(row.site)
        session = None if desk is None else desk.session
        return SiteInfo(
            site=row.site,
            organisation=row.organisation,
            connected=session is not None,
            revoked=bool(row.certificate) and self.trust.revoked(Peer.of_pem(row.certificate)),
            last_seen=(None if desk is None else desk.seen_at) or row.seen,
            winnow_version=row.winnow,
            data=msgspec.msgpack.decode(row.data, type=list[str]),
            free=msgspec.msgpack.decode(row.resources, type=Resources) if session is None else session.free,
            jobs=[] if desk is None else sorted(desk.parts),
        )

    async def control(self, peer: Peer, request: ControlSite) -> Acknowledgement:
        rows = {row.site: row for row in await asyncio.to_thread(self.records.sites)}
        if request.site not in rows:
            raise RequestRefusedError(f"no site called {request.site} was ever here")
        target = CommandTarget(name=request.site, organisation=rows[request.site].organisation)
        await self.authorise(peer, "control", target)
        answer = await self.hub.control(request.site, restart=request.restart)
        what = "restart" if request.restart else "stop"
        if answer is None:
            return Acknowledgement(note=f"{request.site} was asked to {what} and has not answered yet")
        if not answer.accepted:
            raise RequestRefusedError(f"{request.site} does not {what}: {answer.reason or 'it gave no reason'}")
        return Acknowledgement(note=f"{request.site} {what}s")


def latest_that_fit(states: Sequence[JobInfo]) -> list[JobInfo]:
    """The latest jobs of which one message can tell, the oldest first."""
    chosen: list[JobInfo] = []
    room = MAX_MESSAGE - MESSAGE_OVERHEAD
    for state in reversed(states):
        room -= len(msgspec.msgpack.encode(state))
        if room < 0:
            break
        chosen.append(state)
    return chosen[::-1]
