"""What the processes of a job at a site are made of, and what each of them is told and may see."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.deploy.jobs.ipc import PrepareJob
from winnow.deploy.sandbox.isolation import ProcessLimits, Sandbox
from winnow.deploy.site.admission_control import AdmissionTerms
from winnow.deploy.site.job_folder import JobFolder


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """Of one job."""

    job: str
    folder: JobFolder
    bundle: Path
    data: dict[str, Any]
    terms: AdmissionTerms
    limits: ProcessLimits
    worker: str
    """The module, or file, that does the work."""
    screen: str
    """The one that passes it through the site's filters."""

    @property
    def gated(self) -> bool:
        return self.terms.own_code and bool(self.terms.filters)

    def sandbox(self) -> Sandbox | None:
        if not self.terms.sandboxed:
            return None
        places = [self.data[key] for key in ("file", "folder") if key in self.data]
        module = [self.worker] if self.worker.endswith(".py") else []
        return Sandbox(read=[str(self.folder.path), *places, *module], write=[str(self.folder.work)])

    def preparation(self, folder: Path, clients_from: int | None, *, gate: bool, data: bool) -> PrepareJob:
        return PrepareJob(
            job=self.job,
            folder=str(folder),
            bundle=str(self.bundle),
            data=self.data if data else {},
            filters=self.terms.filters if gate or not self.gated else [],
            clients_from=clients_from,
            threads=len(self.limits.cpus),
            own_code=not gate,
        )
