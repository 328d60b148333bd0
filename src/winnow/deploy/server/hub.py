"""Sites and what is asked of them: sessions, orders, answers. It lives as long as this server leads."""

import asyncio
import logging
import time
from collections.abc import Iterable, Set
from pathlib import Path
from typing import Protocol

import msgspec

from winnow.deploy.server.config import ServerConfig
from winnow.deploy.server.desks import Clock, Desk, Part, Session, fingerprint
from winnow.deploy.server.journal import Journal
from winnow.deploy.server.ledger import Ledger, NewLine
from winnow.deploy.trust.identity import Peer
from winnow.deploy.wire.codec import MAX_MESSAGE
from winnow.deploy.wire.errors import Refused
from winnow.deploy.wire.messages import (
    PROTOCOLS,
    Answer,
    Assign,
    Cancel,
    Control,
    Deploy,
    Done,
    Given,
    Hello,
    Joined,
    Orders,
    Poll,
    Report,
    Settle,
    Stop,
    Welcome,
    WireTask,
)

log = logging.getLogger(__name__)

SILENCE = 3
"""Heartbeats without a word after which a site counts as gone."""
LARGEST = MAX_MESSAGE - 4096
"""Bytes of a task, so that the message around it fits too."""
SKEW = 30.0
"""Seconds by which clocks may differ before it is worth a line."""


class Listener(Protocol):
    """Who wants to know what sites say."""

    def sites_changed(self) -> None:
        """One came, went, or has other resources free."""

    async def site_joined(self, site: str, message: Joined) -> None: ...

    def site_answered(self, site: str, answer: Answer, path: Path | None) -> None: ...


class Spool(Protocol):
    """Where the blobs of answers lie."""

    def reply(self, site: str, answer: Answer) -> Path | None:
        """The file of an answer's blob; raises where it is not there as a whole."""

    def discard(self, job: str, site: str, digests: Iterable[str]) -> None: ...

    def keep_only(self, job: str, site: str, digests: Set[str]) -> None: ...


class Hub:
    def __init__(
        self, config: ServerConfig, ledger: Ledger, journal: Journal, spool: Spool, *, clock: Clock = time.monotonic
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._journal = journal
        self._spool = spool
        self._clock = clock
        self._listener: Listener | None = None
        self.desks: dict[str, Desk] = {}

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    @property
    def listener(self) -> Listener:
        assert self._listener is not None
        return self._listener

    # What sites ask ---------------------------------------------------------------------------------------------------

    async def hello(self, peer: Peer, hello: Hello) -> Welcome:
        common = set(PROTOCOLS) & set(hello.protocols)
        if not common:
            ours, theirs = ", ".join(map(str, PROTOCOLS)), ", ".join(map(str, hello.protocols)) or "none"
            raise Refused(f"this server speaks protocol {ours}, site {peer.name} speaks {theirs}; update the older one")
        if hello.certificate and Peer.of_pem(hello.certificate) != peer:
            raise Refused(f"site {peer.name} showed a certificate in its greeting that is not its own")
        now = await asyncio.to_thread(self._ledger.seen, peer.name, peer.organisation, hello)
        if abs(now - hello.now) > SKEW:
            log.warning("the clock of site %s differs by %+.0f s from the database's", peer.name, hello.now - now)
        session = Session(peer, hello, self._clock())
        desk = self.desks.setdefault(peer.name, Desk(site=peer.name))
        if desk.session is not None and self._clock() - desk.session.seen < self._config.heartbeat / 2:
            log.info("site %s began a new session while its last one was alive", peer.name)
        desk.welcome(session)
        log.info("site %s connected (Winnow %s, data: %s)", peer.name, hello.winnow, ", ".join(hello.data) or "none")
        self.listener.sites_changed()
        return Welcome(protocol=max(common), session=session.id, heartbeat=self._config.heartbeat)

    async def poll(self, peer: Peer, poll: Poll) -> Orders:
        session = self._session(peer, poll.session)
        if session.free != poll.free:
            session.free = poll.free
            self.listener.sites_changed()
        self.desks[peer.name].heard(poll.received)
        await session.wait(self._config.heartbeat)
        session = self._session(peer, poll.session)
        return session.batch()

    async def joined(self, peer: Peer, message: Joined) -> Done:
        self._session(peer, message.session)
        part = self._part(peer, message.job)
        if message.accepted and message.data is None:
            raise Refused(f"site {peer.name} accepted job {message.job} without describing its data")
        if message.accepted and part.data is not None and message.data != part.data:
            self._expel(peer.name, message.job, "its data changed since the job began")
            raise Refused(f"site {peer.name}: its data changed since job {message.job} began")
        part.out = ""
        if not message.accepted:
            self._expel(peer.name, message.job, message.reason or "it refused")
        await self.listener.site_joined(peer.name, message)
        return Done()

    async def given(self, peer: Peer, message: Given) -> Done:
        """An answer: to a task that was sent to this site, for a client that it was sent for, once."""
        self._session(peer, message.session)
        answer = message.answer
        part = self._part(peer, answer.job)
        known = part.answered.get(answer.task, {}).get(answer.client)
        if known == fingerprint(answer):
            return Done(note="known already")
        if known is not None:
            raise await self._suspicious(peer, answer, "answered twice, and differently")
        if answer.task in part.late:
            return Done(note="nobody waits for it any more")
        if answer.task not in part.tasks and part.resumed:
            raise Refused(f"job {answer.job} goes on from its last round; the task will be sent again")
        if answer.task not in part.tasks:
            raise await self._suspicious(peer, answer, "answered a task that it was not sent")
        if answer.client not in part.tasks[answer.task].waiting:
            raise await self._suspicious(peer, answer, "answered for a client that it was not asked for")
        try:
            path = await asyncio.to_thread(self._spool.reply, peer.name, answer)
        except Refused:
            self._ask_again(peer.name, part, answer)
            raise
        self._accept(peer.name, part, answer, path)
        return Done()

    async def report(self, peer: Peer, message: Report) -> Done:
        self._session(peer, message.session)
        self._part(peer, message.job)
        for text in message.lines:
            self._journal.say(message.job, peer.name, text)
        if message.metrics:
            self._journal.measured(message.job, peer.name, message.metrics)
        return Done()

    # What jobs ask of sites -------------------------------------------------------------------------------------------

    def deploy(self, site: str, order: Deploy) -> Part:
        """Ask a site to take part, or tell it more about a job that it takes part in."""
        desk = self.desks.setdefault(site, Desk(site=site))
        part = desk.parts.setdefault(order.job, Part(deploy=order))
        part.deploy = order
        desk.tell(order)
        return part

    def restart(self, site: str, job: str) -> None:
        """The job goes on from its last round, and will ask again for what it still needs."""
        self._engaged(site, job)[1].forget_tasks()

    def assign(self, site: str, job: str, task: WireTask) -> None:
        desk, part = self._engaged(site, job)
        if part.out:
            for client in task.clients:
                self._fail(site, job, task.id, client, part.out)
            return
        order = Assign(job=job, task=task)
        if (size := len(msgspec.msgpack.encode(order))) > LARGEST:
            for client in task.clients:
                self._fail(site, job, task.id, client, f"the task is too large to send: {size} bytes of {LARGEST}")
            return
        part.ask(task)
        desk.tell(order)

    def withdraw(self, site: str, job: str, tasks: Iterable[str]) -> None:
        desk, part = self._engaged(site, job)
        gone = [task for task in tasks if part.withdraw(task)]
        if gone:
            desk.tell(Cancel(job=job, tasks=gone))

    def settle(self, site: str, order: Settle) -> None:
        """A round is committed; replies that were folded, and those to tasks that are over, are needed no more."""
        desk, part = self._engaged(site, order.job)
        self._spool.discard(order.job, site, part.settled(order))
        if part.resumed:
            self._spool.keep_only(order.job, site, part.needed())
            part.resumed = False
        if order.tasks or order.over:
            desk.tell(order)

    def heard(self, site: str, job: str) -> int:
        """The last round such that the site has heard what it and all before it settled."""
        return self._engaged(site, job)[1].heard

    def dismiss(self, site: str, job: str, reason: str) -> None:
        """The site has no part in the job any more."""
        desk = self.desks.get(site)
        if desk is not None and desk.parts.pop(job, None) is not None:
            desk.tell(Stop(job=job, reason=reason))

    def control(self, site: str, *, restart: bool) -> None:
        desk = self.desks.get(site)
        if desk is None or desk.session is None:
            raise Refused(f"site {site} is not connected")
        desk.session.add(Control(restart=restart))

    def connected(self) -> dict[str, Desk]:
        return {site: desk for site, desk in self.desks.items() if desk.session is not None}

    def sweep(self) -> None:
        """Let go of sites that have been silent too long. Their parts wait for them."""
        for desk in self.connected().values():
            assert desk.session is not None
            silent = self._clock() - desk.session.seen
            if silent > SILENCE * self._config.heartbeat:
                log.warning("site %s has been silent for %.0f s: disconnected", desk.site, silent)
                desk.session.end()
                desk.session = None
                self.listener.sites_changed()

    def close(self) -> None:
        """We lead no more: those who wait are sent elsewhere."""
        for desk in self.connected().values():
            assert desk.session is not None
            desk.session.end()
        self.desks.clear()

    # ------------------------------------------------------------------------------------------------------------------

    def _session(self, peer: Peer, session: str) -> Session:
        desk = self.desks.get(peer.name)
        if desk is None or desk.session is None or desk.session.id != session:
            raise Refused(f"site {peer.name}: this session is over; say hello again")
        desk.session.seen = self._clock()
        return desk.session

    def _part(self, peer: Peer, job: str) -> Part:
        desk = self.desks.get(peer.name)
        part = None if desk is None else desk.parts.get(job)
        if part is None:
            raise Refused(f"site {peer.name} has no part in job {job}, or the job is over")
        return part

    def _engaged(self, site: str, job: str) -> tuple[Desk, Part]:
        desk = self.desks[site]
        return desk, desk.parts[job]

    def _ask_again(self, site: str, part: Part, answer: Answer) -> None:
        """Its blob is not here, maybe since it is also that of an older answer, and was cleared away with that."""
        if (open_task := part.tasks.get(answer.task)) is not None:
            self.desks[site].repeat(Assign(job=answer.job, task=open_task.task))

    def _accept(self, site: str, part: Part, answer: Answer, path: Path | None) -> None:
        """Checked again after waiting for the disk: the task may have been withdrawn, or answered, meanwhile."""
        if part.accept(answer):
            self.listener.site_answered(site, answer, path)

    def _expel(self, site: str, job: str, reason: str) -> None:
        """The site is out of this job: whoever waits for its answers need not."""
        part = self.desks[site].parts[job]
        part.out = reason
        self._journal.add(job, NewLine(source="server", kind="log", text=f"site {site} takes no part: {reason}"))
        tasks, part.tasks = part.tasks, {}
        for task, open_task in tasks.items():
            for client in sorted(open_task.waiting):
                self._fail(site, job, task, client, reason)

    def _fail(self, site: str, job: str, task: str, client: int, reason: str) -> None:
        answer = Answer(job=job, task=task, client=client, stage="taking part", failure=reason)
        self.listener.site_answered(site, answer, None)

    async def _suspicious(self, peer: Peer, answer: Answer, what: str) -> Refused:
        reason = f"site {peer.name} {what} (job {answer.job}, task {answer.task[:12]}, client {answer.client})"
        await self._journal.audit_request(peer, "answer", answer.job, f"refused: {reason}")
        return Refused(reason)
