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
from winnow.deploy.server.blobs import Blobs
from winnow.deploy.server.hub import Hub
from winnow.deploy.server.journal import Journal
from winnow.deploy.server.lease import LeaseLostError
from winnow.deploy.server.ledger import ENDED, QUEUED, RUNNING, Ledger, NewLine
from winnow.deploy.server.records import Records
from winnow.deploy.server.scheduler import Scheduler
from winnow.deploy.server.tables import Job, SiteRow
from winnow.deploy.server.transfers import Transfers
from winnow.deploy.server.wishes import Order, read_order
from winnow.deploy.trust.identity import Peer, utc_now
from winnow.deploy.trust.revocation import Revocations
from winnow.deploy.trust.server_policy import NOTHING, Command, ServerPolicy, Target, allows
from winnow.deploy.trust.signing import JOB_DAYS, Signature, check_date, verify
from winnow.deploy.wire.codec import MAX_MESSAGE
from winnow.deploy.wire.errors import Refused
from winnow.deploy.wire.messages import (
    MAX_TEXT,
    Abort,
    Blob,
    ControlSite,
    Done,
    Follow,
    JobList,
    Jobs,
    JobState,
    Line,
    Resources,
    Result,
    ResultState,
    SiteList,
    SiteState,
    Submit,
)
from winnow.deploy.work.bundle import Bundle, read_bundle

PATIENCE = 5.0
"""Seconds after which one who follows a job looks again, even if nobody said that there is something new."""

ROOM = 4096
"""Bytes of a message for what is around the jobs that it lists."""


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Whom this server believes, as of now."""

    authority: x509.Certificate
    revocations: Callable[[], Revocations]
    policy: Callable[[], ServerPolicy]
    job_days: float = JOB_DAYS
    now: Callable[[], datetime] = utc_now

    def revoked(self, peer: Peer) -> bool:
        return peer.serial in self.revocations().serials

    def author(self, bundle: Bundle) -> Peer:
        """Who signed the bundle, not too long ago."""
        signature = Signature(certificate=bundle.certificate, value=bundle.signature)
        author = verify(signature, bundle.signed, self.authority, self.revocations(), self.now())
        check_date(bundle.issued, self.now(), self.job_days)
        return author


@dataclass(frozen=True, kw_only=True)
class Commands:
    trust: Trust
    ledger: Ledger
    records: Records
    blobs: Blobs
    hub: Hub
    journal: Journal
    scheduler: Scheduler
    transfers: Transfers

    async def authorise(self, peer: Peer, command: Command, target: Target = NOTHING, *, quietly: bool = False) -> None:
        """Raise unless the policy allows it. Refusals are always noted, what is allowed unless `quietly`."""
        decision = allows(self.trust.policy(), peer, command, target)
        if not decision.allowed:
            await self.journal.audit_request(peer, command, target.name, f"refused: {decision.reason}")
            raise Refused(decision.reason)
        if not quietly:
            await self.journal.audit_request(peer, command, target.name, "allowed")

    # Jobs -------------------------------------------------------------------------------------------------------------

    async def submit(self, peer: Peer, request: Submit) -> Done:
        target = Target(name=request.job, organisation=peer.organisation, owner=peer.name)
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
        return Done(note=note)

    async def _submit(self, peer: Peer, request: Submit) -> str:
        known = await asyncio.to_thread(self.records.job, request.job)
        if known is not None:
            return self._same(known, peer, request)
        uploads = self.transfers.uploads(peer.name)
        if not uploads.has(request.bundle):
            raise Refused(f"the bundle of {request.job} has not arrived; put it first")
        path = uploads.path(request.bundle)
        bundle, order = await asyncio.to_thread(self._examine, path, peer)
        await asyncio.to_thread(self.blobs.put, request.job, path)
        row = Job(
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
        line = NewLine(source="server", kind="log", text=f"submitted by {peer}")
        if not await asyncio.to_thread(self.ledger.add_job, row, line):
            return "known already"
        self.scheduler.add(row, order)
        return "queued"

    async def _forget_upload(self, peer: Peer, bundle: Blob) -> None:
        """Whatever became of it; one that has not arrived as a whole may be on its way."""
        uploads = self.transfers.uploads(peer.name)
        if uploads.has(bundle):
            await asyncio.to_thread(uploads.remove, bundle)

    def _examine(self, path: Path, peer: Peer) -> tuple[Bundle, Order]:
        """Read a bundle, check its signature, and what it asks for; for a thread."""
        bundle = read_bundle(path.read_bytes())
        author = self.trust.author(bundle)
        if (author.name, author.organisation) != (peer.name, peer.organisation):
            raise Refused(f"the job was signed by {author.name}, not by {peer.name}, who submits it; sign it yourself")
        if len(bundle.config) > MAX_TEXT:
            raise Refused(f"the job's configuration is longer than {MAX_TEXT} characters")
        return bundle, read_order(bundle)

    @staticmethod
    def _same(known: Job, peer: Peer, request: Submit) -> str:
        if (known.submitter, known.bundle) != (peer.name, request.bundle.digest):
            raise Refused(f"there is another job called {request.job}; choose another name")
        return "known already"

    async def jobs(self, peer: Peer, request: Jobs) -> JobList:
        await self.authorise(peer, "jobs", await self._target(request.job))
        states = await asyncio.to_thread(self.records.states, request.job)
        return JobList(jobs=latest_that_fit([self._as_of_now(state) for state in states]))

    def _as_of_now(self, state: JobState) -> JobState:
        """With the latest metrics and, of a job that runs, who is left out and whom it awaits."""
        metrics = {**state.metrics, **self.journal.live.get(state.job, {})}
        attendance = self.hub.attendance(state.job)
        if attendance is None or state.status != RUNNING:
            return msgspec.structs.replace(state, metrics=metrics)
        return msgspec.structs.replace(state, metrics=metrics, reason=attendance.told(), out=attendance.absences())

    async def abort(self, peer: Peer, request: Abort) -> Done:
        await self.authorise(peer, "abort", await self._target(request.job))
        reason = f"{peer.name}: {request.reason}" if request.reason else f"by {peer.name}"
        if not await self.scheduler.abort(request.job, reason):
            return Done(note="it had ended already")
        await self.journal.audit(peer, "abort", request.job, "aborted")
        return Done(note="aborted")

    async def result(self, peer: Peer, request: Result) -> ResultState:
        await self.authorise(peer, "download", await self._target(request.job))
        row = await asyncio.to_thread(self.records.job, request.job)
        assert row is not None
        last = await asyncio.to_thread(self.records.last_round, request.job)
        return ResultState(
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

    async def follow(self, peer: Peer, request: Follow) -> AsyncGenerator[Line]:
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
                await self.journal.news(request.job, PATIENCE)

    async def may_put(self, peer: Peer) -> None:
        await self.authorise(peer, "submit", Target(organisation=peer.organisation, owner=peer.name), quietly=True)

    async def may_fetch(self, peer: Peer, job: str) -> None:
        await self.authorise(peer, "download", await self._target(job), quietly=True)

    async def _target(self, job: str | None) -> Target:
        if job is None:
            return NOTHING
        row = await asyncio.to_thread(self.records.job, job)
        if row is None:
            raise Refused(f"there is no job called {job}")
        return Target(name=job, organisation=row.organisation, owner=row.submitter)

    # Sites ------------------------------------------------------------------------------------------------------------

    async def sites(self, peer: Peer) -> SiteList:
        await self.authorise(peer, "sites")
        rows = await asyncio.to_thread(self.records.sites)
        return SiteList(sites=[self._site(row) for row in rows])

    def _site(self, row: SiteRow) -> SiteState:
        desk = self.hub.desks.get(row.site)
        session = None if desk is None else desk.session
        return SiteState(
            site=row.site,
            organisation=row.organisation,
            connected=session is not None,
            seen=(None if desk is None else desk.seen_at) or row.seen,
            winnow=row.winnow,
            data=msgspec.msgpack.decode(row.data, type=list[str]),
            free=msgspec.msgpack.decode(row.resources, type=Resources) if session is None else session.free,
            jobs=[] if desk is None else sorted(desk.parts),
        )

    async def control(self, peer: Peer, request: ControlSite) -> Done:
        rows = {row.site: row for row in await asyncio.to_thread(self.records.sites)}
        if request.site not in rows:
            raise Refused(f"no site called {request.site} was ever here")
        target = Target(name=request.site, organisation=rows[request.site].organisation)
        await self.authorise(peer, "control", target)
        self.hub.control(request.site, restart=request.restart)
        return Done(note=f"{request.site} was told to {'start anew' if request.restart else 'stop'}")


def latest_that_fit(states: Sequence[JobState]) -> list[JobState]:
    """The latest jobs of which one message can tell, the oldest first."""
    chosen: list[JobState] = []
    room = MAX_MESSAGE - ROOM
    for state in reversed(states):
        room -= len(msgspec.msgpack.encode(state))
        if room < 0:
            break
        chosen.append(state)
    return chosen[::-1]
