"""All that a server does while it leads. It is made when the lease is won, and dropped when it is lost."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from winnow.core import WinnowError
from winnow.deploy.jobs.bundle_format import read_bundle
from winnow.deploy.sandbox.isolation import sandbox_unavailable_reason
from winnow.deploy.sandbox.launch import RUNNER_MODULE
from winnow.deploy.server.blob_store import open_blob_store
from winnow.deploy.server.blob_transfers import UPLOAD_EXPIRY_SECONDS, BlobTransfers
from winnow.deploy.server.config import ServerConfig
from winnow.deploy.server.database import Database
from winnow.deploy.server.job_logs import AuditWriter, JobLogs
from winnow.deploy.server.job_spec import JobSpec, read_job_spec
from winnow.deploy.server.leader_writes import FAILED, RUNNING, LeaderWrites
from winnow.deploy.server.lease import FencedDatabase
from winnow.deploy.server.queries import Queries
from winnow.deploy.server.reply_inboxes import ReplyInboxes
from winnow.deploy.server.running_job import LeaderContext
from winnow.deploy.server.scheduler import Scheduler
from winnow.deploy.server.site_hub import SiteHub
from winnow.deploy.server.tables import JobRow
from winnow.deploy.server.user_commands import ServerTrust, UserCommands
from winnow.deploy.server.warm_runner import WarmRunner
from winnow.deploy.wire.messages import Blob

log = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
"""Seconds after which a revoked or silent site is noticed at the latest."""


@dataclass(frozen=True, kw_only=True)
class ServerResources:
    """What a server has, whether it leads or not."""

    config: ServerConfig
    state: Path
    database: Database
    trust: ServerTrust
    auditor: AuditWriter
    runner: str = RUNNER_MODULE
    spare: WarmRunner
    moved: Callable[[int, int], None] = lambda _in, _out: None


class Leader:
    def __init__(self, estate: ServerResources, token: int) -> None:
        config = estate.config
        fence = FencedDatabase(database=estate.database, token=token)
        ledger, blobs = LeaderWrites(fence=fence), open_blob_store(fence, estate.state / "blobs")
        records = Queries(database=estate.database)
        jobs = estate.state / "jobs"
        inboxes = ReplyInboxes(jobs, config.limits)
        self.token = token
        self._blobs, self._ledger, self._records = blobs, ledger, records
        self.journal = JobLogs(ledger, estate.auditor, most=config.limits.lines)
        self.hub = SiteHub(config, ledger, self.journal, inboxes, revoked=estate.trust.revoked)
        workshop = LeaderContext(
            ledger=ledger,
            records=records,
            blobs=blobs,
            hub=self.hub,
            journal=self.journal,
            inboxes=inboxes,
            jobs=jobs,
            data=config.data,
            memory_mb=config.limits.code_mb,
            disk_mb=config.limits.code_disk_mb,
            unfenced=config.sandbox == "none" and sandbox_unavailable_reason() is not None,
            runner=estate.runner,
            spare=estate.spare,
        )
        self.scheduler = Scheduler(workshop, join=config.join, most=config.limits.jobs)
        self.hub.listen(self.scheduler)
        self.transfers = BlobTransfers(
            limits=config.limits,
            state=estate.state,
            blobs=blobs,
            records=records,
            hub=self.hub,
            inboxes=inboxes,
            parts=self.scheduler.parts,
            moved=estate.moved,
        )
        self.commands = UserCommands(
            trust=estate.trust,
            ledger=ledger,
            records=records,
            blobs=blobs,
            hub=self.hub,
            journal=self.journal,
            scheduler=self.scheduler,
            transfers=self.transfers,
        )
        self._heartbeat = config.heartbeat

    async def begin(self) -> None:
        """Take up all jobs where the last leader left them."""
        for row in await asyncio.to_thread(self._records.open_jobs):
            try:
                order = await asyncio.to_thread(self._order, row)
            except WinnowError as error:
                await asyncio.to_thread(self._ledger.set_status, row.job, FAILED, str(error), line=f"failed: {error}")
                continue
            if row.status == RUNNING:
                await self.scheduler.resume(row, order)
            else:
                self.scheduler.add(row, order)

    def _order(self, row: JobRow) -> JobSpec:
        """What the job asks for; what an interrupted leader left of its blobs, and no row names, is cleared away."""
        self._blobs.remove(row.job, self._blobs.digests(row.job) - self._records.referred(row.job))
        blob = Blob(digest=row.bundle, size=row.bundle_size)
        return read_job_spec(read_bundle(b"".join(self._blobs.read(row.job, blob))))

    async def rule(self) -> None:
        """Until cancelled; raises when something fails that only a new beginning mends."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.scheduler.run())
            group.create_task(self.journal.run())
            group.create_task(self._sweep())
            group.create_task(self._sweep_uploads())
            group.create_task(self._watch())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, self._heartbeat / 2))
            self.hub.sweep()

    async def _sweep_uploads(self) -> None:
        while True:
            await asyncio.to_thread(self.transfers.sweep)
            await asyncio.sleep(UPLOAD_EXPIRY_SECONDS / 4)

    async def _watch(self) -> None:
        await self.scheduler.failure

    async def end(self, *, kindly: bool) -> None:
        """Kindly: what is under way may end, and what was said is written. Else at once."""
        if not kindly:
            await self.scheduler.stop(kindly=False)
        else:
            await self.scheduler.stop(kindly=True)
            with suppress(WinnowError):
                await self.journal.flush()
                await self.journal.tell_repeats(all=True)
        self.hub.close()
