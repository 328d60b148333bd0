"""The running jobs of a leader: started, seen through to their end, and cleared away."""

import asyncio
import logging
from collections.abc import Callable

import msgspec
from sqlalchemy.exc import DataError, SQLAlchemyError

from winnow.config.job_settings import JobSettings
from winnow.core import WinnowError
from winnow.deploy.jobs.ipc_messages import JobSite
from winnow.deploy.server.database_writes import FAILED
from winnow.deploy.server.leader_context import LeaderContext
from winnow.deploy.server.running_job import CHECKPOINTS_ENDED, JobOutcome, RunningJob, restart_point
from winnow.deploy.server.tables import JobRow
from winnow.deploy.wire.messages import DeployJob, PeerSite

log = logging.getLogger(__name__)


class JobSupervisor:
    """`job_ended` is called after each end of a job."""

    def __init__(self, context: LeaderContext, job_ended: Callable[[], None]) -> None:
        self._context = context
        self._job_ended = job_ended
        self._starting: set[str] = set()
        self._jobs: dict[str, RunningJob] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set when a job failed in a way that ends our leadership: the lease is lost, or the database gone."""

    def count(self) -> int:
        return len(self._jobs)

    async def start(
        self, deploy: DeployJob, members: list[JobSite], settings: JobSettings, *, last_round: int = 0
    ) -> None:
        hub = self._context.hub
        self._starting.add(deploy.job)
        certificates = await asyncio.to_thread(self._context.queries.certificates)
        if deploy.job not in self._starting:  # it was aborted meanwhile
            for member in members:
                hub.remove_site(member.site, deploy.job, "the job was aborted")
            return
        self._starting.discard(deploy.job)
        neighbours = [
            PeerSite(
                site=member.site,
                first_client=member.first_client,
                client_count=len(member.data.sizes),
                certificate=certificates[member.site],
            )
            for member in members
            if certificates.get(member.site)
        ]
        for member in members:
            order = msgspec.structs.replace(deploy, first_client=member.first_client, peer_sites=neighbours)
            hub.deploy(member.site, order).data = member.data
            hub.set_certificate(member.site, certificates.get(member.site, b""))
        job = RunningJob(self._context, deploy.job, deploy.bundle, members, last_round=last_round)
        sites = [member.site for member in members]
        hub.start_membership(deploy.job, sites, job, settings)
        self._jobs[deploy.job] = job
        self._tasks[deploy.job] = asyncio.create_task(self._supervise(job), name=f"job {deploy.job}")

    async def resume(self, row: JobRow, deploy: DeployJob, settings: JobSettings) -> None:
        """Continue a job that ran under an earlier leader, or before this server restarted: its members are fixed."""
        context = self._context
        stored = await asyncio.to_thread(context.queries.members, row.job)
        members = [
            JobSite(site=each.site, first_client=each.first_client, data=each.data)
            for each in stored
            if each.first_client is not None and each.data is not None
        ]
        sites = {member.site for member in members}
        acknowledged = {each.site: each.acknowledged_round for each in stored if each.site in sites}
        settles = await asyncio.to_thread(context.queries.pending_settles, row.job, acknowledged)
        text = f"{context.server} is the leader now; the job continues {restart_point(row.round)}"
        context.job_logs.add_server_line(row.job, text)
        await self.start(deploy, members, settings, last_round=row.round)
        for site, settle in settles:
            context.exchange.settle(site, settle)
        for each in stored:
            if each.site not in sites:
                continue
            part = context.hub.sites[each.site].participations[row.job]
            if each.excluded_since is not None:
                part.exclusion_reason, part.excluded_since = each.reason, each.excluded_since
            part.settled_round = row.round
            part.resumed = True

    async def abort(self, job: str, reason: str) -> None:
        """Stop the job, if it runs. Its status is already set."""
        self._starting.discard(job)
        task, running = self._tasks.get(job), self._jobs.get(job)
        if task is not None and running is not None:
            running.set_stop_reason(reason)
            task.cancel()
            await asyncio.wait([task])
            await self._clear_up(running)

    async def stop(self, *, graceful: bool) -> None:
        """End all processes; the jobs stay as they are and continue under the next leader."""
        for job in self._jobs.values():
            if graceful:
                job.set_stop_reason("the server is stopping")
            else:
                job.kill()
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def _supervise(self, job: RunningJob) -> None:
        """See a job through to its end. If we are stopped before that, sites are not told: the job will continue."""
        try:
            await self._conclude(job, await self._outcome(job))
            await self._clear_up(job)
        except (WinnowError, SQLAlchemyError) as error:
            reason = str(error).split("\n", maxsplit=1)[0]
            log.error("job %s stops at this server, and continues under the next leader: %s", job.job, reason)
            if not self.failure.done():
                self.failure.set_exception(error)
        finally:
            self._jobs.pop(job.job, None)
            self._tasks.pop(job.job, None)
            self._job_ended()

    @staticmethod
    async def _outcome(job: RunningJob) -> JobOutcome:
        """An internal error ends the one job that met it, and no other."""
        try:
            return await job.run()
        except DataError as error:
            return JobOutcome(failure=f"the database rejected what the job wrote: {error.orig}")
        except (WinnowError, SQLAlchemyError):
            raise
        except Exception as error:
            log.exception("job %s: internal server error", job.job)
            return JobOutcome(failure=f"internal server error ({type(error).__name__}); see the server's log")

    async def _conclude(self, job: RunningJob, outcome: JobOutcome) -> None:
        writes, job_logs = self._context.writes, self._context.job_logs
        await job_logs.flush()
        if outcome.outputs is not None:
            await asyncio.to_thread(writes.finish, job.job, outcome.outputs)
            text = "finished"
            log.info("job %s finished", job.job)
        else:
            text = f"failed: {outcome.failure}"
            await asyncio.to_thread(writes.set_status, job.job, FAILED, outcome.failure, line=text)
            log.error("job %s failed: %s", job.job, outcome.failure)
        await job_logs.audit(None, "job ended", job.job, text)
        await job.remove_old_checkpoints(CHECKPOINTS_ENDED)

    async def _clear_up(self, job: RunningJob) -> None:
        self._context.hub.job_ended(job.job, [member.site for member in job.members], "the job has ended")
        await asyncio.to_thread(self._context.inboxes.clear, job.job)
        self._context.job_logs.forget(job.job)
        self._job_ended()
