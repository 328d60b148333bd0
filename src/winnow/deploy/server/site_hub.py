"""The sites of a project: their connections, and which jobs they participate in. It lives as long as its leader."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from winnow.config.job_settings import JobSettings
from winnow.deploy.server.config import ServerConfig
from winnow.deploy.server.database_writes import LeaderWrites
from winnow.deploy.server.job_log_writer import JobLogs
from winnow.deploy.server.job_membership import JobMembership, TaskSource
from winnow.deploy.server.site_instruction_delivery import MonotonicClock, SiteConnection, SiteSession
from winnow.deploy.server.site_job_state import Participation
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.errors import RequestRefusedError, one_line
from winnow.deploy.wire.messages import (
    PROTOCOLS,
    SITE_LOST_KIND,
    Acknowledgement,
    DeployJob,
    DeployResult,
    Hello,
    Poll,
    SiteInstructions,
    StopJob,
    Welcome,
)

log = logging.getLogger(__name__)

MISSED_HEARTBEATS = 3
"""Heartbeats without contact after which a site counts as disconnected."""
REVOKED_REASON = "its certificate was revoked; it rejoins when it connects with a renewed kit"
DATA_CHANGED_REASON = "its data have changed since the job started; restore them at the site, or submit the job again"
MAX_CLOCK_SKEW = 30.0
"""Seconds by which clocks may differ without a warning."""


class SiteEventListener(Protocol):
    """The scheduler of waiting jobs."""

    def sites_changed(self) -> None:
        """A site connected, disconnected, or has other resources free."""

    async def site_joined(self, site: str, message: DeployResult) -> None:
        """A site's reply to the offer of a job that has not started."""


class SiteHub:
    def __init__(
        self,
        config: ServerConfig,
        writes: LeaderWrites,
        job_logs: JobLogs,
        *,
        revoked: Callable[[Peer], bool] = lambda peer: False,
        clock: MonotonicClock = time.monotonic,
    ) -> None:
        self._config = config
        self._writes = writes
        self._job_logs = job_logs
        self._revoked = revoked
        self._clock = clock
        self._listener: SiteEventListener | None = None
        self.sites: dict[str, SiteSession] = {}
        self.memberships: dict[str, JobMembership] = {}
        """Of the running jobs."""

    def set_listener(self, listener: SiteEventListener) -> None:
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
            raise RequestRefusedError(f"site {peer.name} sent a certificate that is not its own")
        if hello.check:
            return Welcome(protocol=max(common), session="check", heartbeat=self._config.heartbeat)
        now = await asyncio.to_thread(self._writes.record_site, peer.name, peer.organisation, hello)
        if abs(now - hello.clock) > MAX_CLOCK_SKEW:
            log.warning(
                "the clock of site %s differs by %+.0f s from the database's; correct it", peer.name, hello.clock - now
            )
        connection, session = SiteConnection(peer, hello), self._site(peer.name)
        if session.connection is not None and self._clock() - session.last_seen < self._config.heartbeat / 2:
            log.warning(
                "site %s connected again while its previous connection was still active, which is now closed; "
                "if this repeats, two agents are running with the same kit",
                peer.name,
            )
        self._distribute_certificate(peer.name, hello.certificate)
        session.connect(connection)
        session.mark_seen(self._clock())
        log.info(
            "site %s connected (Winnow %s, data: %s)",
            peer.name,
            one_line(hello.winnow_version),
            ", ".join(hello.data) or "none",
        )
        self.listener.sites_changed()
        return Welcome(protocol=max(common), session=connection.id, heartbeat=self._config.heartbeat)

    async def poll(self, peer: Peer, poll: Poll) -> SiteInstructions:
        connection = self.connection(peer, poll.session)
        if connection.free != poll.free:
            connection.free = poll.free
            self.listener.sites_changed()
        self.sites[peer.name].acknowledge(poll.received)
        await connection.wait(self._config.heartbeat)
        return self.connection(peer, poll.session).batch()

    async def deploy_result(self, peer: Peer, message: DeployResult) -> Acknowledgement:
        """Whether the site accepts a job."""
        self.connection(peer, message.session)
        part = self.participation(peer, message.job)
        if message.accepted and message.data is None:
            raise RequestRefusedError(f"site {peer.name} accepted job {message.job} without describing its data")
        membership = self.memberships.get(message.job)
        if membership is None:
            await self._join_waiting_job(peer.name, part, message)
        elif not message.accepted:
            reason = f"{message.reason or 'it rejected the job'}; it will be asked again"
            membership.exclude(peer.name, reason, self._clock())
        elif message.data != part.data:
            membership.exclude(peer.name, DATA_CHANGED_REASON, self._clock())
            raise RequestRefusedError(f"the data of site {peer.name} have changed since job {message.job} started")
        else:
            membership.readmit(peer.name)
        return Acknowledgement()

    async def _join_waiting_job(self, site: str, part: Participation, message: DeployResult) -> None:
        reason = one_line(message.reason)
        part.exclusion_reason = "" if message.accepted else reason or "it rejected the job"
        if not message.accepted:
            text = f"site {site} rejected the job{f': {reason}' if reason else ''}"
            log.warning("job %s: %s", message.job, text)
            self._job_logs.add_server_line(message.job, text, SITE_LOST_KIND)
        await self.listener.site_joined(site, message)

    # What jobs ask of sites -------------------------------------------------------------------------------------------

    def deploy(self, site: str, order: DeployJob) -> Participation:
        """Offer a job to a site, or send it more about a job that it participates in."""
        session = self._site(site)
        part = session.participations.setdefault(order.job, Participation(deploy=order))
        part.deploy = order
        session.send(order)
        return part

    def start_membership(self, job: str, sites: Sequence[str], source: TaskSource, settings: JobSettings) -> None:
        """The job runs on these sites."""
        shortest = MISSED_HEARTBEATS * self._config.heartbeat  # an idle site polls no more often
        settings = settings.model_copy(update={"site_timeout": max(settings.site_timeout, shortest)})
        self.memberships[job] = JobMembership(job, self.sites, sites, source, self._job_logs, settings)

    def notices(self) -> list[str]:
        """One line for each running job from which sites are missing."""
        return [
            f"job {job}: {membership.summary()}"
            for job, membership in sorted(self.memberships.items())
            if membership.has_absences()
        ]

    def job_ended(self, job: str, sites: Iterable[str], reason: str) -> None:
        self.memberships.pop(job, None)
        for site in sites:
            self.remove_site(site, job, reason)

    def remove_site(self, site: str, job: str, reason: str) -> None:
        """The site no longer participates in the job."""
        session = self.sites.get(site)
        if session is not None and session.participations.pop(job, None) is not None:
            session.send(StopJob(job=job, reason=reason))

    def connected(self) -> dict[str, SiteSession]:
        return {site: session for site, session in self.sites.items() if session.connection is not None}

    def sweep(self) -> None:
        """Disconnect sites that have been silent for too long. Their participations wait for them."""
        now = self._clock()
        for session in self.connected().values():
            if now - session.last_seen > MISSED_HEARTBEATS * self._config.heartbeat:
                log.warning(
                    "no contact with site %s for %.0f s; its jobs wait for it until their site_timeout",
                    session.site,
                    now - session.last_seen,
                )
                session.disconnect()
                self.listener.sites_changed()
        for session in self.sites.values():
            if session.peer is not None and self._revoked(session.peer):
                self._exclude_revoked(session, now)
        for membership in list(self.memberships.values()):
            membership.sweep(now)

    def mark_seen(self, peer: Peer) -> None:
        """Bytes moved: the site is there, however long its next poll takes."""
        if peer.name in self.sites:
            self.sites[peer.name].mark_seen(self._clock())

    def set_certificate(self, site: str, certificate: bytes) -> None:
        """The owner of the site's certificate, until the site itself connects."""
        session = self._site(site)
        if session.peer is None and certificate:
            session.peer = Peer.of_pem(certificate)

    def close(self) -> None:
        """We are no longer the leader: polls that wait are released."""
        for session in self.connected().values():
            session.disconnect()
        self.sites.clear()
        self.memberships.clear()

    # ------------------------------------------------------------------------------------------------------------------

    def connection(self, peer: Peer, session_id: str) -> SiteConnection:
        """The site's present connection; raises if `session_id` names an earlier one."""
        session = self.sites.get(peer.name)
        if session is None or session.connection is None or session.connection.id != session_id:
            raise RequestRefusedError(f"site {peer.name}: its session has ended")
        session.mark_seen(self._clock())
        return session.connection

    def participation(self, peer: Peer, job: str) -> Participation:
        session = self.sites.get(peer.name)
        part = None if session is None else session.participations.get(job)
        if part is None:
            raise RequestRefusedError(f"site {peer.name} does not participate in job {job}, or the job has ended")
        return part

    def _site(self, site: str) -> SiteSession:
        return self.sites.setdefault(site, SiteSession(site=site, last_seen=self._clock()))

    def _exclude_revoked(self, session: SiteSession, now: float) -> None:
        """A site whose certificate was revoked is excluded from all jobs until it connects with a new one."""
        if session.connection is not None:
            log.warning("the certificate of site %s was revoked; its connection was closed", session.site)
            session.disconnect()
            self.listener.sites_changed()
        for job in session.participations:
            if (membership := self.memberships.get(job)) is not None:
                membership.exclude(session.site, REVOKED_REASON, now)

    def _distribute_certificate(self, site: str, certificate: bytes) -> None:
        """The site's neighbours get its renewed certificate: else they reject what it signs."""
        for session in self.sites.values():
            for part in session.participations.values():
                neighbours = [
                    msgspec.structs.replace(each, certificate=certificate) if each.site == site else each
                    for each in part.deploy.peer_sites
                ]
                if certificate and neighbours != part.deploy.peer_sites:
                    part.deploy = msgspec.structs.replace(part.deploy, peer_sites=neighbours)
                    session.send(part.deploy)
