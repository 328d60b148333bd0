"""Which job runs where and when: by priority, then by age, as soon as enough of its sites are there and willing.

A job is offered to sites only if enough of them have room at the same time, so that two jobs never hold each other's
sites while both wait. A job that must wait does not hold up those behind it.
"""

import asyncio
import logging
import time
from pathlib import Path

import msgspec
from sqlalchemy.exc import DataError, SQLAlchemyError

from winnow.config.job_settings import JobSettings
from winnow.core import WinnowError
from winnow.deploy.jobs.ipc import JobSite
from winnow.deploy.server.job_spec import JobSpec
from winnow.deploy.server.leader_writes import ABORTED, FAILED, QUEUED, STARTING
from winnow.deploy.server.running_job import CHECKPOINTS_ENDED, JobOutcome, LeaderContext, RunningJob
from winnow.deploy.server.site_sessions import MonotonicClock
from winnow.deploy.server.tables import JobRow
from winnow.deploy.server.waiting_job import WaitingJob
from winnow.deploy.wire.messages import Blob, ClientResult, DeployJob, DeployResult, PeerSite

log = logging.getLogger(__name__)


class Scheduler:
    def __init__(
        self, workshop: LeaderContext, *, join: float, most: int, clock: MonotonicClock = time.monotonic
    ) -> None:
        self._shop = workshop
        self._join = join
        self._most = most
        self._clock = clock
        self._wake = asyncio.Event()
        self._waiting: dict[str, WaitingJob] = {}
        self._starting: set[str] = set()
        self._runs: dict[str, RunningJob] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set when a job's keeper failed in a way that ends this reign: the lease is lost, or the database gone."""

    # What others tell it ----------------------------------------------------------------------------------------------

    def add(self, row: JobRow, order: JobSpec) -> None:
        deploy = DeployJob(
            job=row.job,
            bundle=Blob(digest=row.bundle, size=row.bundle_size),
            submitter=row.submitter,
            resources=order.resources,
        )
        rank = (-row.priority, row.submitted, row.job)
        self._waiting[row.job] = WaitingJob(
            job=row.job, order=order, deploy=deploy, rank=rank, status=row.status, reason=row.reason
        )
        self._wake.set()

    def sites_changed(self) -> None:
        self._wake.set()

    async def site_joined(self, site: str, message: DeployResult) -> None:
        waiting = self._waiting.get(message.job)
        if waiting is None or site not in waiting.offered:
            return
        await asyncio.to_thread(
            self._shop.ledger.joined,
            message.job,
            site,
            accepted=message.accepted,
            reason=message.reason,
            data=message.data,
        )
        if self._waiting.get(message.job) is not waiting:
            return  # it began meanwhile, and whoever refused it is left out of its rounds; or it was aborted
        if message.accepted and message.data is not None:
            waiting.accepted[site] = message.data
        else:
            waiting.refused[site] = (message.reason or "no reason given", self._clock())
            waiting.offered.discard(site)
            self._shop.hub.dismiss(site, message.job, "it refused")
            log.warning("job %s: site %s refused: %s", message.job, site, message.reason)
        self._wake.set()

    def site_answered(self, site: str, answer: ClientResult, path: Path | None) -> None:
        run = self._runs.get(answer.job)
        if run is not None:
            run.answered(answer, path)

    def start_again(self, job: str) -> None:
        if (run := self._runs.get(job)) is not None:
            run.start_again()

    def hold(self, job: str, on: bool) -> None:
        if (run := self._runs.get(job)) is not None:
            run.hold(on)

    def parts(self, job: str) -> Path | None:
        run = self._runs.get(job)
        return None if run is None else run.parts

    def running(self) -> list[str]:
        return sorted(self._runs)

    async def abort(self, job: str, reason: str) -> bool:
        """End a job; whether there was anything to end."""
        if not await asyncio.to_thread(self._shop.ledger.set_status, job, ABORTED, reason, line=f"aborted: {reason}"):
            return False
        waiting = self._waiting.pop(job, None)
        if waiting is not None:
            self._withdraw(waiting, "the job was aborted")
        self._starting.discard(job)
        task, run = self._tasks.get(job), self._runs.get(job)
        if task is not None and run is not None:
            run.prepare_to_end(reason)
            task.cancel()
            await asyncio.wait([task])
            await self._clear_up(run)
        self._shop.journal.forget(job)
        return True

    # Its own doing ----------------------------------------------------------------------------------------------------

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

    async def stop(self, *, kindly: bool) -> None:
        """End all processes; the jobs stay as they are and go on under the next leader."""
        for run in self._runs.values():
            if kindly:
                run.prepare_to_end("the server stops")
            else:
                run.kill()
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def _consider(self, waiting: WaitingJob) -> None:
        """One step for one job."""
        if waiting.job not in self._waiting:
            return
        if len(self._runs) >= self._most:
            await self._note(waiting, QUEUED, f"waits for one of {len(self._runs)} running jobs to end")
            return
        waiting.forgive(self._clock())
        connected = self._shop.hub.connected()
        here = waiting.able(connected)
        if len(here) < waiting.wishes.needed:
            self._withdraw(waiting, "the job waits for more sites")
            await self._note(waiting, QUEUED, waiting.lacking(connected))
            return
        await self._offer(waiting, here)
        if not waiting.ready(here, self._clock(), self._join):
            await self._note(waiting, STARTING, waiting.unanswered())
            return
        await self._begin(waiting)

    async def _offer(self, waiting: WaitingJob, sites: list[str]) -> None:
        new = [site for site in sites if site not in waiting.offered]
        if not new:
            return
        await asyncio.to_thread(self._shop.ledger.offer, waiting.job, new)
        for site in new:
            waiting.offered.add(site)
            waiting.accepted.pop(site, None)
            self._shop.hub.deploy(site, waiting.deploy)

    async def _begin(self, waiting: WaitingJob) -> None:
        """Fix who takes part, number the clients, and start the process."""
        members, first = [], 0
        for site in waiting.able(self._shop.hub.connected()):
            if site in waiting.accepted:
                data = waiting.accepted[site]
                members.append(JobSite(site=site, clients_from=first, data=data))
                first += len(data.sizes)
        if len(members) < waiting.wishes.needed:
            return
        if not await asyncio.to_thread(self._shop.ledger.begin, waiting.job, members):
            return
        if self._waiting.pop(waiting.job, None) is None:
            return
        for site in waiting.offered - {member.site for member in members}:
            self._shop.hub.dismiss(site, waiting.job, "the job began without this site")
        await self._start(waiting.deploy, members, waiting.wishes)

    async def resume(self, row: JobRow, order: JobSpec) -> None:
        """A job that ran under an earlier leader: its members are fixed, and it goes on."""
        self.add(row, order)
        deploy = self._waiting.pop(row.job).deploy
        stored = await asyncio.to_thread(self._shop.records.members, row.job)
        members = [
            JobSite(site=each.site, clients_from=each.clients_from, data=each.data)
            for each in stored
            if each.clients_from is not None and each.data is not None
        ]
        out = {each.site: each for each in stored if each.out_since is not None}
        taking_part = {member.site for member in members}
        heard = {each.site: each.heard for each in stored if each.site in taking_part}
        settles = await asyncio.to_thread(self._shop.records.settles, row.job, heard)
        await self._start(deploy, members, order.wishes)
        for site, settle in settles:
            self._shop.hub.settle(site, settle)
        for member in members:
            part = self._shop.hub.desks[member.site].parts[row.job]
            if member.site in out:
                part.out, part.out_since = out[member.site].reason, out[member.site].out_since
            part.round = row.round
            part.resumed = True

    async def _start(self, deploy: DeployJob, members: list[JobSite], wishes: JobSettings) -> None:
        self._starting.add(deploy.job)
        certificates = await asyncio.to_thread(self._shop.records.certificates)
        if deploy.job not in self._starting:  # it was aborted meanwhile
            for member in members:
                self._shop.hub.dismiss(member.site, deploy.job, "the job was aborted")
            return
        self._starting.discard(deploy.job)
        neighbours = [
            PeerSite(
                site=member.site,
                first_client=member.clients_from,
                client_count=len(member.data.sizes),
                certificate=certificates[member.site],
            )
            for member in members
            if certificates.get(member.site)
        ]
        for member in members:
            order = msgspec.structs.replace(deploy, first_client=member.clients_from, peer_sites=neighbours)
            self._shop.hub.deploy(member.site, order).data = member.data
            self._shop.hub.know(member.site, certificates.get(member.site, b""))
        sites = [member.site for member in members]
        self._shop.hub.attend(deploy.job, sites, needed=wishes.needed, timeout=wishes.site_timeout)
        run = self._runs[deploy.job] = RunningJob(self._shop, deploy.job, deploy.bundle, members)
        self._tasks[deploy.job] = asyncio.create_task(self._attend(run), name=f"job {deploy.job}")

    async def _attend(self, run: RunningJob) -> None:
        """See a job through to its end. If we are stopped before that, sites hear nothing: the job will go on."""
        try:
            await self._conclude(run, await self._outcome(run))
            await self._clear_up(run)
        except (WinnowError, SQLAlchemyError) as error:
            log.error("job %s: %s", run.job, str(error).split("\n", maxsplit=1)[0])
            if not self.failure.done():
                self.failure.set_exception(error)
        finally:
            self._runs.pop(run.job, None)
            self._tasks.pop(run.job, None)
            self._wake.set()

    @staticmethod
    async def _outcome(run: RunningJob) -> JobOutcome:
        """A fault of our own ends the one job that met it, and no other."""
        try:
            return await run.run()
        except DataError as error:
            return JobOutcome(failure=f"the database does not take what it says: {error.orig}")
        except (WinnowError, SQLAlchemyError):
            raise
        except Exception as error:
            log.exception("job %s met a fault of the server", run.job)
            return JobOutcome(failure=f"the server failed at it ({type(error).__name__}); its log says more")

    async def _clear_up(self, run: RunningJob) -> None:
        self._shop.hub.ended(run.job, [member.site for member in run.members], "the job is over")
        await asyncio.to_thread(self._shop.inboxes.clear, run.job)
        self._shop.journal.forget(run.job)
        self._wake.set()

    async def _conclude(self, run: RunningJob, ending: JobOutcome) -> None:
        ledger, job = self._shop.ledger, run.job
        await self._shop.journal.flush()
        if ending.outputs is not None:
            await asyncio.to_thread(ledger.finish, job, ending.outputs)
            log.info("job %s is finished", job)
        else:
            await asyncio.to_thread(ledger.set_status, job, FAILED, ending.failure, line=f"failed: {ending.failure}")
            log.error("job %s failed: %s", job, ending.failure)
        outcome = "finished" if ending.outputs is not None else f"failed: {ending.failure}"
        await self._shop.journal.audit(None, "job ended", job, outcome)
        await run.retire(CHECKPOINTS_ENDED)

    def _withdraw(self, waiting: WaitingJob, reason: str) -> None:
        for site in waiting.offered:
            self._shop.hub.dismiss(site, waiting.job, reason)
        waiting.offered.clear()
        waiting.accepted.clear()
        waiting.enough_since = None

    async def _note(self, waiting: WaitingJob, status: str, reason: str) -> None:
        if (waiting.status, waiting.reason) != (status, reason):
            waiting.status, waiting.reason = status, reason
            await asyncio.to_thread(self._shop.ledger.set_status, waiting.job, status, reason)
            self._shop.journal.wake(waiting.job)
