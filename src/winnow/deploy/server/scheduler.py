"""Which job starts where and when: by priority, then by age, as soon as enough of its sites are connected and accept.

A job is offered to sites only if enough of them have capacity at the same time, so that two jobs never hold each
other's sites while both wait. A job that must wait does not hold up those behind it.
"""

import asyncio
import logging
import time

from winnow.deploy.jobs.ipc_messages import JobSite
from winnow.deploy.server.database_writes import ABORTED, QUEUED, STARTING
from winnow.deploy.server.job_spec import JobSpec
from winnow.deploy.server.job_supervisor import JobSupervisor
from winnow.deploy.server.leader_context import LeaderContext
from winnow.deploy.server.site_instruction_delivery import MonotonicClock
from winnow.deploy.server.tables import JobRow
from winnow.deploy.server.waiting_job import WaitingJob
from winnow.deploy.wire.messages import Blob, DeployJob, DeployResult

log = logging.getLogger(__name__)

LOG_AFTER_SECONDS = 2.0
"""What a job has been waiting for this long is written into its log."""


class Scheduler:
    """`join_wait` is how many seconds a job that could start waits for further sites."""

    def __init__(
        self, context: LeaderContext, *, join_wait: float, max_running: int, clock: MonotonicClock = time.monotonic
    ) -> None:
        self._context = context
        self._join_wait = join_wait
        self._max_running = max_running
        self._clock = clock
        self._wake = asyncio.Event()
        self._waiting: dict[str, WaitingJob] = {}
        self.running = JobSupervisor(context, self._wake.set)

    # What others tell it ----------------------------------------------------------------------------------------------

    def add(self, row: JobRow, spec: JobSpec) -> None:
        self._waiting[row.job] = WaitingJob(
            job=row.job,
            spec=spec,
            deploy=_deploy(row, spec),
            rank=(-row.priority, row.submitted, row.job),
            status=row.status,
            reason=row.reason,
        )
        self._wake.set()

    def notices(self) -> list[str]:
        """One line for each job that waits."""
        return [f"job {each.job} is {each.status}: {each.reason}" for each in self._waiting.values() if each.reason]

    async def resume(self, row: JobRow, spec: JobSpec) -> None:
        """A job that has started under an earlier leader, or before this server restarted."""
        await self.running.resume(row, _deploy(row, spec), spec.settings)

    def sites_changed(self) -> None:
        self._wake.set()

    async def site_joined(self, site: str, message: DeployResult) -> None:
        waiting = self._waiting.get(message.job)
        if waiting is None or site not in waiting.offered:
            return
        await asyncio.to_thread(
            self._context.writes.record_join,
            message.job,
            site,
            accepted=message.accepted,
            reason=message.reason,
            data=message.data,
        )
        if self._waiting.get(message.job) is not waiting:
            return  # it started meanwhile, and a site that rejected it is excluded from its rounds; or it was aborted
        if message.accepted and message.data is not None:
            waiting.accepted[site] = message.data
        else:
            waiting.rejected[site] = (message.reason or "no reason given", self._clock())
            waiting.offered.discard(site)
            self._context.hub.remove_site(site, message.job, "this site rejected the job")
        self._wake.set()

    async def abort(self, job: str, reason: str) -> bool:
        """End a job; False if it had ended already."""
        writes = self._context.writes
        if not await asyncio.to_thread(writes.set_status, job, ABORTED, reason, line=f"aborted: {reason}"):
            return False
        waiting = self._waiting.pop(job, None)
        if waiting is not None:
            self._withdraw(waiting, "the job was aborted")
        await self.running.abort(job, reason)
        self._context.job_logs.forget(job)
        return True

    # Waiting jobs -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            self._wake.clear()
            for waiting in sorted(self._waiting.values(), key=lambda each: each.rank):
                await self._consider(waiting)
            try:
                async with asyncio.timeout(1.0):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _consider(self, waiting: WaitingJob) -> None:
        """One step for one job."""
        if waiting.job not in self._waiting:
            return
        running = self.running.count()
        if running >= self._max_running:
            jobs = "the running job" if running == 1 else f"one of {running} running jobs"
            await self._set_status(waiting, QUEUED, f"waiting for {jobs} to end")
            return
        waiting.expire_rejections(self._clock())
        connected = self._context.hub.connected()
        available = waiting.available_sites(connected)
        if len(available) < waiting.settings.needed:
            self._withdraw(waiting, "the job is waiting for more sites")
            await self._set_status(waiting, QUEUED, waiting.shortage(connected))
            return
        await self._offer(waiting, available)
        if not waiting.ready(available, self._clock(), self._join_wait):
            await self._set_status(waiting, STARTING, waiting.pending_replies())
            return
        await self._start(waiting)

    async def _offer(self, waiting: WaitingJob, sites: list[str]) -> None:
        new = [site for site in sites if site not in waiting.offered]
        if not new:
            return
        await asyncio.to_thread(self._context.writes.offer_job, waiting.job, new)
        for site in new:
            waiting.offered.add(site)
            waiting.accepted.pop(site, None)
            self._context.hub.deploy(site, waiting.deploy)

    async def _start(self, waiting: WaitingJob) -> None:
        """Fix who participates, number the clients, and start the process."""
        members, first = [], 0
        for site in waiting.available_sites(self._context.hub.connected()):
            if site in waiting.accepted:
                data = waiting.accepted[site]
                members.append(JobSite(site=site, first_client=first, data=data))
                first += len(data.sizes)
        if len(members) < waiting.settings.needed:
            return
        if not await asyncio.to_thread(self._context.writes.start_job, waiting.job, members):
            return
        if self._waiting.pop(waiting.job, None) is None:
            return
        for site in waiting.offered - {member.site for member in members}:
            self._context.hub.remove_site(site, waiting.job, "the job started without this site")
        await self.running.start(waiting.deploy, members, waiting.settings)

    def _withdraw(self, waiting: WaitingJob, reason: str) -> None:
        for site in waiting.offered:
            self._context.hub.remove_site(site, waiting.job, reason)
        waiting.offered.clear()
        waiting.accepted.clear()
        waiting.enough_since = None

    async def _set_status(self, waiting: WaitingJob, status: str, reason: str) -> None:
        if (waiting.status, waiting.reason) != (status, reason):
            waiting.status, waiting.reason = status, reason
            waiting.unlogged_since = self._clock()
            await asyncio.to_thread(self._context.writes.set_status, waiting.job, status, reason)
            self._context.job_logs.notify(waiting.job)
        elif waiting.unlogged_since is not None and self._clock() - waiting.unlogged_since >= LOG_AFTER_SECONDS:
            waiting.unlogged_since = None
            self._context.job_logs.add_untrusted(waiting.job, reason)  # it may quote a site


def _deploy(row: JobRow, spec: JobSpec) -> DeployJob:
    return DeployJob(
        job=row.job,
        bundle=Blob(digest=row.bundle, size=row.bundle_size),
        submitter=row.submitter,
        resources=spec.resources,
    )
