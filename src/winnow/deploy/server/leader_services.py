"""All that a server does while it is the leader. It is created with the lease and dropped when that is lost."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from winnow.core import WinnowError
from winnow.deploy.jobs.bundle_format import read_bundle
from winnow.deploy.sandbox.isolation import sandbox_unavailable_reason
from winnow.deploy.server.application_store import ApplicationStore
from winnow.deploy.server.audit_reading import AuditReading
from winnow.deploy.server.blob_store import open_blob_store
from winnow.deploy.server.blob_transfers import UPLOAD_EXPIRY_SECONDS, BlobTransfers
from winnow.deploy.server.config import ServerConfig
from winnow.deploy.server.database import Database
from winnow.deploy.server.database_reads import Queries
from winnow.deploy.server.database_writes import FAILED, RUNNING, LeaderWrites
from winnow.deploy.server.job_log_writer import AuditWriter, JobLogs
from winnow.deploy.server.job_spec import JobSpec, read_job_spec
from winnow.deploy.server.job_submission import JobSubmission, ServerTrust
from winnow.deploy.server.leader_context import LeaderContext
from winnow.deploy.server.lease import FencedDatabase
from winnow.deploy.server.reply_blob_folders import ReplyInboxes
from winnow.deploy.server.scheduler import Scheduler
from winnow.deploy.server.site_hub import SiteHub
from winnow.deploy.server.site_stop_and_restart import SiteControl
from winnow.deploy.server.tables import JobRow
from winnow.deploy.server.task_exchange import TaskExchange
from winnow.deploy.server.user_commands import UserCommands
from winnow.deploy.server.warm_runner import WarmRunner
from winnow.deploy.wire.messages import Blob

log = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
"""Seconds after which a revoked or silent site is noticed at the latest."""


@dataclass(frozen=True, kw_only=True)
class ServerResources:
    """What a server has, whether it is the leader or not."""

    name: str
    config: ServerConfig
    state_folder: Path
    database: Database
    trust: ServerTrust
    audit: AuditWriter
    read_audit: AuditReading
    runner: str
    """The module, or file, that runs a job."""
    warm_runner: WarmRunner
    count_traffic: Callable[[int, int], None] = lambda _in, _out: None


class Leader:
    def __init__(self, resources: ServerResources, token: int) -> None:
        config, jobs = resources.config, resources.state_folder / "jobs"
        self.token = token
        fenced = FencedDatabase(database=resources.database, token=token)
        self._writes, self._queries = LeaderWrites(fenced=fenced), Queries(database=resources.database)
        self._blobs = open_blob_store(fenced, resources.state_folder / "blobs")
        self.job_logs = JobLogs(self._writes, resources.audit, max_lines=config.limits.log_lines)
        self.hub = SiteHub(config, self._writes, self.job_logs, revoked=resources.trust.revoked)
        inboxes = ReplyInboxes(jobs, config.limits)
        self.control = SiteControl(self.hub)
        self.exchange = TaskExchange(self.hub, self.job_logs, inboxes)
        context = LeaderContext(
            server=resources.name,
            writes=self._writes,
            queries=self._queries,
            blobs=self._blobs,
            hub=self.hub,
            exchange=self.exchange,
            job_logs=self.job_logs,
            inboxes=inboxes,
            jobs=jobs,
            data=config.data,
            memory_mb=config.limits.custom_code_memory_mb,
            disk_mb=config.limits.custom_code_disk_mb,
            unsandboxed=config.sandbox == "none" and sandbox_unavailable_reason() is not None,
            runner=resources.runner,
            warm_runner=resources.warm_runner,
        )
        self.scheduler = Scheduler(context, join_wait=config.join_wait, max_running=config.limits.running_jobs)
        self.hub.set_listener(self.scheduler)
        self.transfers = BlobTransfers(
            limits=config.limits,
            state=resources.state_folder,
            blobs=self._blobs,
            hub=self.hub,
            inboxes=inboxes,
            count_traffic=resources.count_traffic,
        )
        self.applications = ApplicationStore(fenced=fenced, authority=resources.trust.authority)
        self.commands = UserCommands(
            trust=resources.trust,
            queries=self._queries,
            hub=self.hub,
            job_logs=self.job_logs,
            scheduler=self.scheduler,
            transfers=self.transfers,
            submission=JobSubmission(
                trust=resources.trust,
                writes=self._writes,
                queries=self._queries,
                blobs=self._blobs,
                scheduler=self.scheduler,
                transfers=self.transfers,
            ),
            site_control=self.control,
            read_audit=resources.read_audit,
            applications=self.applications,
        )
        self._heartbeat = config.heartbeat

    async def resume_jobs(self) -> None:
        """Continue all jobs where the last leader left them."""
        for row in await asyncio.to_thread(self._queries.open_jobs):
            try:
                spec = await asyncio.to_thread(self._job_spec, row)
            except WinnowError as error:
                log.error("job %s failed: %s", row.job, error)
                await asyncio.to_thread(self._writes.set_status, row.job, FAILED, str(error), line=f"failed: {error}")
                continue
            if row.status == RUNNING:
                await self.scheduler.resume(row, spec)
            else:
                self.scheduler.add(row, spec)

    def _job_spec(self, row: JobRow) -> JobSpec:
        """From the job's bundle. Blobs that an interrupted leader left, and no row references, are removed."""
        self._blobs.remove(row.job, self._blobs.digests(row.job) - self._queries.referenced_blobs(row.job))
        blob = Blob(digest=row.bundle, size=row.bundle_size)
        return read_job_spec(read_bundle(b"".join(self._blobs.read(row.job, blob))))

    async def run(self) -> None:
        """Until cancelled; raises when something fails that only a new leader mends."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.scheduler.run())
            group.create_task(self.job_logs.run())
            group.create_task(self._sweep())
            group.create_task(self._sweep_uploads())
            group.create_task(self._raise_failure())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, self._heartbeat / 2))
            self.hub.sweep()

    async def _sweep_uploads(self) -> None:
        while True:
            await asyncio.to_thread(self.transfers.sweep)
            await asyncio.sleep(UPLOAD_EXPIRY_SECONDS / 4)

    async def _raise_failure(self) -> None:
        await self.scheduler.running.failure

    async def stop(self, *, graceful: bool) -> None:
        """Graceful: processes may end by themselves, and log lines are written. Else at once."""
        await self.scheduler.running.stop(graceful=graceful)
        if graceful:
            with suppress(WinnowError):
                await self.job_logs.flush()
                await self.job_logs.audit_suppressed(all=True)
        self.hub.close()
