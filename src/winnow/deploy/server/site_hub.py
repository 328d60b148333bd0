"""Sites and what is asked of them: sessions, orders, answers. It lives as long as this server leads."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path
from typing import Protocol

import msgspec

from winnow.deploy.server.config import ServerConfig
from winnow.deploy.server.job_logs import JobLogs
from winnow.deploy.server.job_membership import JobMembership, MembershipCallbacks
from winnow.deploy.server.leader_writes import SERVER_SOURCE, LeaderWrites, NewLogLine
from winnow.deploy.server.site_sessions import (
    MonotonicClock,
    Participation,
    SiteConnection,
    SiteSession,
    reply_digest,
)
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.errors import RequestRefusedError, one_line
from winnow.deploy.wire.message_codec import MAX_MESSAGE
from winnow.deploy.wire.messages import (
    LOG_KIND,
    PROTOCOLS,
    SITE_LOST_KIND,
    Acknowledgement,
    AssignTask,
    CancelTasks,
    ClientResult,
    ControlAgent,
    ControlResult,
    DeployJob,
    DeployResult,
    Hello,
    Poll,
    Settle,
    SiteInstructions,
    StopJob,
    SubmitResult,
    Welcome,
    WireTask,
)

log = logging.getLogger(__name__)

MISSED_HEARTBEATS = 3
"""Heartbeats without a word after which a site counts as gone."""
REVOKED_REASON = "its certificate was revoked; it is taken back when it comes with a renewed kit"
MAX_TASK_BYTES = MAX_MESSAGE - 4096
"""Bytes of a task, so that the message around it fits too."""
CONTROL_SECONDS = 10.0
"""Seconds that a site has to answer whether it stops or restarts."""
MAX_CLOCK_SKEW = 30.0
"""Seconds by which clocks may differ before it is worth a line."""


class SiteEventListener(Protocol):
    """Who wants to know what sites say."""

    def sites_changed(self) -> None:
        """One came, went, or has other resources free."""

    async def site_joined(self, site: str, message: DeployResult) -> None: ...

    def site_answered(self, site: str, answer: ClientResult, path: Path | None) -> None: ...

    def start_again(self, job: str) -> None:
        """The job is to go back to its last committed round."""

    def hold(self, job: str, on: bool) -> None:
        """The job waits for sites, or no longer does."""


class ReplyBlobs(Protocol):
    """Where the blobs of answers lie."""

    def reply(self, site: str, answer: ClientResult) -> Path | None:
        """The file of an answer's blob; raises where it is not there as a whole."""

    def discard(self, job: str, site: str, digests: Iterable[str]) -> None: ...

    def keep_only(self, job: str, site: str, digests: Set[str]) -> None: ...


class SiteHub:
    def __init__(
        self,
        config: ServerConfig,
        ledger: LeaderWrites,
        journal: JobLogs,
        spool: ReplyBlobs,
        *,
        revoked: Callable[[Peer], bool] = lambda peer: False,
        clock: MonotonicClock = time.monotonic,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._journal = journal
        self._spool = spool
        self._revoked = revoked
        self._clock = clock
        self._listener: SiteEventListener | None = None
        self.desks: dict[str, SiteSession] = {}
        self._running: dict[str, JobMembership] = {}
        self._controls: dict[str, asyncio.Future[ControlResult]] = {}
        """By site, who waits for its answer to a request to stop or restart."""

    def listen(self, listener: SiteEventListener) -> None:
        self._listener = listener

    @property
    def listener(self) -> SiteEventListener:
        assert self._listener is not None
        return self._listener

    # What sites ask ---------------------------------------------------------------------------------------------------

    async def hello(self, peer: Peer, hello: Hello) -> Welcome:
        common = set(PROTOCOLS) & set(hello.protocols)
        if not common:
            ours, theirs = ", ".join(map(str, PROTOCOLS)), ", ".join(map(str, hello.protocols)) or "none"
            older = "site" if max(hello.protocols, default=0) < max(PROTOCOLS) else "server"
            raise RequestRefusedError(
                f"site {peer.name} speaks protocol {theirs}; this server speaks {ours}: update Winnow at the {older}"
            )
        if hello.certificate and Peer.of_pem(hello.certificate) != peer:
            raise RequestRefusedError(f"site {peer.name} showed a certificate in its greeting that is not its own")
        now = await asyncio.to_thread(self._ledger.seen, peer.name, peer.organisation, hello)
        if abs(now - hello.clock) > MAX_CLOCK_SKEW:
            log.warning("the clock of site %s differs by %+.0f s from the database's", peer.name, hello.clock - now)
        session, desk = SiteConnection(peer, hello), self._desk(peer.name)
        if desk.session is not None and self._clock() - desk.seen < self._config.heartbeat / 2:
            log.info("site %s began a new session while its last one was alive", peer.name)
        self._spread(peer.name, hello.certificate)
        desk.welcome(session)
        desk.hear(self._clock())
        log.info(
            "site %s connected (Winnow %s, data: %s)", peer.name, hello.winnow_version, ", ".join(hello.data) or "none"
        )
        self.listener.sites_changed()
        return Welcome(protocol=max(common), session=session.id, heartbeat=self._config.heartbeat)

    async def poll(self, peer: Peer, poll: Poll) -> SiteInstructions:
        session = self._session(peer, poll.session)
        if session.free != poll.free:
            session.free = poll.free
            self.listener.sites_changed()
        self.desks[peer.name].heard(poll.received)
        await session.wait(self._config.heartbeat)
        session = self._session(peer, poll.session)
        return session.batch()

    async def joined(self, peer: Peer, message: DeployResult) -> Acknowledgement:
        self._session(peer, message.session)
        part = self._part(peer, message.job)
        if message.accepted and message.data is None:
            raise RequestRefusedError(f"site {peer.name} accepted job {message.job} without describing its data")
        attendance = self._running.get(message.job)
        if attendance is None:
            await self._joined_waiting(peer.name, part, message)
        elif not message.accepted:
            attendance.leave_out(peer.name, f"{message.reason or 'it refused'}; it is asked again", self._clock())
        elif message.data != part.data:
            attendance.leave_out(peer.name, "its data are not those with which the job started", self._clock())
            raise RequestRefusedError(f"site {peer.name}: its data changed since job {message.job} started")
        else:
            attendance.take_back(peer.name)
        return Acknowledgement()

    async def _joined_waiting(self, site: str, part: Participation, message: DeployResult) -> None:
        """A site's word about a job that has not begun."""
        part.out = "" if message.accepted else one_line(message.reason) or "it refused"
        if part.out:
            self._say(message.job, f"site {site} takes no part: {part.out}", SITE_LOST_KIND)
        await self.listener.site_joined(site, message)

    async def given(self, peer: Peer, message: SubmitResult) -> Acknowledgement:
        """An answer: to a task that was sent to this site, for a client that it was sent for, once."""
        self._session(peer, message.session)
        answer = message.answer
        part = self._part(peer, answer.job)
        if part.out:
            return Acknowledgement(note="this site is left out at present")
        known = part.answered.get(answer.task, {}).get(answer.client)
        if known == reply_digest(answer):
            return Acknowledgement(note="known already")
        if known is not None:
            raise await self._suspicious(peer, answer, "answered twice, and differently")
        if answer.task in part.late:
            return Acknowledgement(note="nobody waits for it any more")
        if answer.task not in part.tasks and part.resumed:
            raise RequestRefusedError(f"job {answer.job} goes on from its last round; the task will be sent again")
        if answer.task not in part.tasks:
            raise await self._suspicious(peer, answer, "answered a task that it was not sent")
        if answer.client not in part.tasks[answer.task].waiting:
            raise await self._suspicious(peer, answer, "answered for a client that it was not asked for")
        try:
            path = await asyncio.to_thread(self._spool.reply, peer.name, answer)
        except RequestRefusedError:
            self._ask_again(peer.name, part, answer)
            raise
        self._accept(peer.name, part, answer, path)
        return Acknowledgement()

    # What jobs ask of sites -------------------------------------------------------------------------------------------

    def deploy(self, site: str, order: DeployJob) -> Participation:
        """Ask a site to take part, or tell it more about a job that it takes part in."""
        desk = self._desk(site)
        part = desk.parts.setdefault(order.job, Participation(deploy=order))
        part.deploy = order
        desk.tell(order)
        return part

    def attend(self, job: str, sites: Sequence[str], *, needed: int, timeout: float) -> None:
        """The job runs on these sites: from now on it is seen to who takes part in its rounds."""
        reactions = MembershipCallbacks(
            say=self._say,
            note=self._journal.note_absence,
            fail=self._fail,
            start_again=self.listener.start_again,
            hold=self.listener.hold,
        )
        timeout = max(
            timeout, MISSED_HEARTBEATS * self._config.heartbeat
        )  # one that has nothing to say polls so seldom
        self._running[job] = JobMembership(job, self.desks, sites, reactions, needed=needed, timeout=timeout)

    def attendance(self, job: str) -> JobMembership | None:
        return self._running.get(job)

    def notices(self) -> list[str]:
        """Of running jobs from which sites are missing, a line each."""
        return [
            f"job {job}: {attendance.told()}"
            for job, attendance in sorted(self._running.items())
            if attendance.missing()
        ]

    def restart(self, site: str, job: str) -> None:
        """The job goes on from its last round, and will ask again for what it still needs."""
        self._engaged(site, job)[1].forget_tasks()
        self._running[job].review()

    def assign(self, site: str, job: str, task: WireTask) -> None:
        desk, part = self._engaged(site, job)
        order = AssignTask(job=job, task=task)
        if (size := len(msgspec.msgpack.encode(order))) > MAX_TASK_BYTES:
            for client in task.clients:
                self._fail(
                    site, job, task.id, client, f"the task is too large to send: {size} bytes of {MAX_TASK_BYTES}"
                )
            return
        part.ask(task)
        if part.out:
            self._running[job].review()
        else:
            desk.tell(order)

    def withdraw(self, site: str, job: str, tasks: Iterable[str]) -> None:
        desk, part = self._engaged(site, job)
        gone = [task for task in tasks if part.withdraw(task)]
        if gone:
            desk.tell(CancelTasks(job=job, tasks=gone))

    def settle(self, site: str, order: Settle) -> None:
        """A round is committed; replies that were folded, and those to tasks that are over, are needed no more."""
        desk, part = self._engaged(site, order.job)
        self._spool.discard(order.job, site, part.settled(order))
        if part.resumed:
            self._spool.keep_only(order.job, site, part.needed())
            part.resumed = False
        if order.tasks or order.ended_tasks:
            desk.tell(order)

    def heard(self, site: str, job: str) -> int:
        """The last round such that the site has heard what it and all before it settled."""
        return self._engaged(site, job)[1].heard

    def ended(self, job: str, sites: Iterable[str], reason: str) -> None:
        """The job runs no more."""
        self._running.pop(job, None)
        for site in sites:
            self.dismiss(site, job, reason)

    def dismiss(self, site: str, job: str, reason: str) -> None:
        """The site has no part in the job any more."""
        desk = self.desks.get(site)
        if desk is not None and desk.parts.pop(job, None) is not None:
            desk.tell(StopJob(job=job, reason=reason))

    async def control(self, site: str, *, restart: bool) -> ControlResult | None:
        """Ask a site's agent to stop or restart; its answer, or None if there is none yet."""
        desk = self.desks.get(site)
        if desk is None or desk.session is None:
            raise RequestRefusedError(f"site {site} is not connected")
        answer = self._controls.setdefault(site, asyncio.get_running_loop().create_future())
        desk.session.add(ControlAgent(restart=restart))
        try:
            async with asyncio.timeout(CONTROL_SECONDS):
                return await asyncio.shield(answer)
        except TimeoutError:
            return None
        finally:
            self._controls.pop(site, None)

    def controlled(self, peer: Peer, message: ControlResult) -> Acknowledgement:
        self._session(peer, message.session)
        answer = self._controls.pop(peer.name, None)
        if answer is not None and not answer.done():
            answer.set_result(message)
        return Acknowledgement()

    def connected(self) -> dict[str, SiteSession]:
        return {site: desk for site, desk in self.desks.items() if desk.session is not None}

    def sweep(self) -> None:
        """Let go of sites that have been silent too long. Their parts wait for them."""
        now = self._clock()
        for desk in self.connected().values():
            if now - desk.seen > MISSED_HEARTBEATS * self._config.heartbeat:
                log.warning("site %s has been silent for %.0f s: disconnected", desk.site, now - desk.seen)
                desk.disconnect()
                self.listener.sites_changed()
        for desk in self.desks.values():
            if desk.peer is not None and self._revoked(desk.peer):
                self._expel(desk, now)
        for attendance in list(self._running.values()):
            attendance.sweep(now)

    def heard_from(self, peer: Peer) -> None:
        """Bytes moved: the site is there, however long its next poll takes."""
        if peer.name in self.desks:
            self.desks[peer.name].hear(self._clock())

    def know(self, site: str, certificate: bytes) -> None:
        """Whose certificate it is, where a site has not been here since we lead."""
        desk = self._desk(site)
        if desk.peer is None and certificate:
            desk.peer = Peer.of_pem(certificate)

    def close(self) -> None:
        """We lead no more: those who wait are sent elsewhere."""
        for desk in self.connected().values():
            desk.disconnect()
        self.desks.clear()
        self._running.clear()

    # ------------------------------------------------------------------------------------------------------------------

    def _session(self, peer: Peer, session: str) -> SiteConnection:
        desk = self.desks.get(peer.name)
        if desk is None or desk.session is None or desk.session.id != session:
            raise RequestRefusedError(f"site {peer.name}: this session is over, and a new one has to begin")
        desk.hear(self._clock())
        return desk.session

    def _desk(self, site: str) -> SiteSession:
        return self.desks.setdefault(site, SiteSession(site=site, seen=self._clock()))

    def _part(self, peer: Peer, job: str) -> Participation:
        desk = self.desks.get(peer.name)
        part = None if desk is None else desk.parts.get(job)
        if part is None:
            raise RequestRefusedError(f"site {peer.name} has no part in job {job}, or the job is over")
        return part

    def _engaged(self, site: str, job: str) -> tuple[SiteSession, Participation]:
        desk = self.desks[site]
        return desk, desk.parts[job]

    def _ask_again(self, site: str, part: Participation, answer: ClientResult) -> None:
        """Its blob is not here, maybe since it is also that of an older answer, and was cleared away with that."""
        if (open_task := part.tasks.get(answer.task)) is not None:
            self.desks[site].repeat(AssignTask(job=answer.job, task=open_task.task))

    def _accept(self, site: str, part: Participation, answer: ClientResult, path: Path | None) -> None:
        """Checked again after waiting for the disk: the task may have been withdrawn, or answered, meanwhile."""
        if part.accept(answer):
            self.listener.site_answered(site, answer, path)

    def _expel(self, desk: SiteSession, now: float) -> None:
        """A site whose certificate was revoked is left out of all jobs until it comes with a new one."""
        if desk.session is not None:
            log.warning("the certificate of site %s was revoked: disconnected", desk.site)
            desk.disconnect()
            self.listener.sites_changed()
        for job in desk.parts:
            if (attendance := self._running.get(job)) is not None:
                attendance.leave_out(desk.site, REVOKED_REASON, now)

    def _spread(self, site: str, certificate: bytes) -> None:
        """Those who work with a site hear of its renewed certificate: without it nothing that it signs would count."""
        for desk in self.desks.values():
            for part in desk.parts.values():
                neighbours = [
                    msgspec.structs.replace(each, certificate=certificate) if each.site == site else each
                    for each in part.deploy.peer_sites
                ]
                if certificate and neighbours != part.deploy.peer_sites:
                    part.deploy = msgspec.structs.replace(part.deploy, peer_sites=neighbours)
                    desk.tell(part.deploy)

    def _say(self, job: str, text: str, kind: str = LOG_KIND) -> None:
        log.info("job %s: %s", job, text)
        self._journal.add(job, NewLogLine(source=SERVER_SOURCE, kind=kind, text=text))

    def _fail(self, site: str, job: str, task: str, client: int, reason: str) -> None:
        answer = ClientResult(job=job, task=task, client=client, stage="taking part", failure=reason)
        self.listener.site_answered(site, answer, None)

    async def _suspicious(self, peer: Peer, answer: ClientResult, what: str) -> RequestRefusedError:
        reason = f"site {peer.name} {what} (job {answer.job}, task {answer.task[:12]}, client {answer.client})"
        await self._journal.audit_request(peer, "answer", answer.job, f"refused: {reason}")
        return RequestRefusedError(reason)
