"""What all jobs of a site share."""

from dataclasses import dataclass
from pathlib import Path

from winnow.deploy.fence.launch import GATE, WORKER
from winnow.deploy.site.config import SiteConfig
from winnow.deploy.site.folder import JobFolder
from winnow.deploy.site.judge import Judge
from winnow.deploy.site.room import Room
from winnow.deploy.site.state import SiteState
from winnow.deploy.site.uplink import Uplink
from winnow.deploy.trust.audit import AuditLog
from winnow.deploy.trust.kit import Kit


@dataclass(frozen=True, kw_only=True)
class Office:
    kit: Kit
    config: SiteConfig
    state: SiteState
    judge: Judge
    room: Room
    uplink: Uplink
    audit: AuditLog
    worker: str = WORKER
    gate: str = GATE

    def folder(self, job: str) -> JobFolder:
        return JobFolder(Path(self.config.state) / "jobs" / job)
