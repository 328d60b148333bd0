"""What all jobs of a site share."""

from dataclasses import dataclass
from pathlib import Path

from winnow.deploy.site.admission_control import AdmissionControl
from winnow.deploy.site.config import SiteConfig
from winnow.deploy.site.job_folder import JobFolder
from winnow.deploy.site.redacting_uplink import Uplink
from winnow.deploy.site.resource_pool import ResourcePool
from winnow.deploy.site.state_store import SiteStateStore
from winnow.deploy.site.warm_worker import WarmWorker
from winnow.deploy.trust.audit_log import AuditLog
from winnow.deploy.trust.kit import Kit


@dataclass(frozen=True, kw_only=True)
class SiteContext:
    kit: Kit
    config: SiteConfig
    state: SiteStateStore
    admission: AdmissionControl
    resources: ResourcePool
    uplink: Uplink
    audit: AuditLog
    warm_worker: WarmWorker
    worker: str
    """The module, or file, that runs the tasks of a job."""
    output_filter: str
    """The one that applies the site's filters to results of a job's own code."""

    def folder(self, job: str) -> JobFolder:
        return JobFolder(Path(self.config.state) / "jobs" / job)
