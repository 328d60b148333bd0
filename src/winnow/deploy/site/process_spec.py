"""What the processes of a job at a site are started with, and what each of them may see."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.deploy.jobs.ipc_messages import PrepareJob, QuestionTerms
from winnow.deploy.sandbox.isolation import ProcessLimits, Sandbox
from winnow.deploy.sandbox.job_process import Launch
from winnow.deploy.site.admission_control import AdmissionTerms
from winnow.deploy.site.job_folder import JobFolder
from winnow.deploy.site.worker_process_handle import WorkerProcess


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """Of one job: its worker and, if `filters_output`, a second process that filters the worker's results."""

    job: str
    folder: JobFolder
    bundle: Path
    data: dict[str, Any]
    terms: AdmissionTerms
    limits: ProcessLimits
    worker: str
    """The module, or file, that runs the tasks."""
    output_filter: str
    """The one that applies the site's filters to results of the job's own code."""
    noise_seed: bytes = b""
    """Of the site's noise in the answer to the job's question."""
    epsilon_left: float | None = None
    """Of the author's budget, where the question is how much that is."""
    launch: Launch | None = None
    """Starts the worker, if not as usual."""

    @property
    def filters_output(self) -> bool:
        """Whether results pass through a second process: the job's own code could change filters in its process."""
        return self.terms.own_code and bool(self.terms.filters)

    def launch_worker(self) -> WorkerProcess:
        return WorkerProcess(
            folder=self.folder.work,
            log=self.folder.path / "worker.log",
            limits=self.limits,
            sandbox=self._worker_sandbox(),
            program=self.worker,
            launch=self.launch,
        )

    def launch_output_filter(self) -> WorkerProcess:
        return WorkerProcess(
            folder=self.folder.output_filter,
            log=self.folder.path / "output_filter.log",
            limits=self.limits,
            sandbox=None,
            program=self.output_filter,
        )

    def worker_message(self, first_client: int | None) -> PrepareJob:
        return PrepareJob(
            job=self.job,
            folder=str(self.folder.work),
            bundle=str(self.bundle),
            data=self.data,
            filters=[] if self.filters_output else self.terms.filters,
            confusion_matrix=self.terms.confusion_matrix,
            share_evidence=self.terms.share_evidence,
            question=self._question_terms(),
            first_client=first_client,
        )

    def output_filter_message(self, *, with_data: bool) -> PrepareJob:
        """The output filter sees the data only if it is to describe them."""
        return PrepareJob(
            job=self.job,
            folder=str(self.folder.output_filter),
            bundle=str(self.bundle),
            data=self.data if with_data else {},
            filters=self.terms.filters,
        )

    def _question_terms(self) -> QuestionTerms | None:
        rule = self.terms.rule
        if rule is None:
            return None
        return QuestionTerms(
            allow=list(rule.allow),
            minimum=rule.minimum,
            rows=rule.rows,
            owners=rule.owners,
            reveal=rule.reveal,
            noise_delta=None if rule.noise is None else rule.noise.delta,
            noise_seed=self.noise_seed,
            epsilon=None if rule.noise is None else rule.noise.epsilon,
            epsilon_left=self.epsilon_left,
        )

    def _worker_sandbox(self) -> Sandbox | None:
        if not self.terms.sandboxed:
            return None
        data = [self.data[key] for key in ("file", "folder") if key in self.data]
        module = [self.worker] if self.worker.endswith(".py") else []
        return Sandbox(read=[str(self.folder.path), *data, *module], write=[str(self.folder.work)])
