"""What the processes of a job at a site are made of, and what each of them is told and may see."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.deploy.fence.confine import Limits, Sandbox
from winnow.deploy.site.folder import JobFolder
from winnow.deploy.site.judge import Terms
from winnow.deploy.work.orders import Prepare


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Of one job."""

    job: str
    folder: JobFolder
    bundle: Path
    data: dict[str, Any]
    terms: Terms
    limits: Limits
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

    def preparation(self, folder: Path, clients_from: int | None, *, gate: bool, data: bool) -> Prepare:
        return Prepare(
            job=self.job,
            folder=str(folder),
            bundle=str(self.bundle),
            data=self.data if data else {},
            filters=self.terms.filters if gate or not self.gated else [],
            clients_from=clients_from,
            threads=len(self.limits.cpus),
            own_code=not gate,
        )
