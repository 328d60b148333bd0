"""What all jobs of a leader share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.deploy.server.blob_store import BlobStore
from winnow.deploy.server.database_reads import Queries
from winnow.deploy.server.database_writes import LeaderWrites
from winnow.deploy.server.job_log_writer import JobLogs
from winnow.deploy.server.reply_blob_folders import ReplyInboxes
from winnow.deploy.server.site_hub import SiteHub
from winnow.deploy.server.task_exchange import TaskExchange
from winnow.deploy.server.warm_runner import WarmRunner


@dataclass(frozen=True, kw_only=True)
class LeaderContext:
    server: str
    """The name of this server."""
    writes: LeaderWrites
    queries: Queries
    blobs: BlobStore
    hub: SiteHub
    exchange: TaskExchange
    job_logs: JobLogs
    inboxes: ReplyInboxes
    jobs: Path
    data: dict[str, dict[str, Any]]
    memory_mb: int
    disk_mb: int
    """What the process of a job with its own code may use."""
    unsandboxed: bool = False
    runner: str
    """The module, or file, that runs a job."""
    warm_runner: WarmRunner
