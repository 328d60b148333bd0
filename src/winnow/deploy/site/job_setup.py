"""Prepares a job at a site: downloads and checks its bundle, admits it, and starts its processes."""

from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from winnow.core.errors import ConfigError
from winnow.deploy.jobs.bundle_format import MAX_BUNDLE_BYTES, Bundle, read_bundle
from winnow.deploy.jobs.client_statement_signatures import submission_id
from winnow.deploy.sandbox.isolation import MB
from winnow.deploy.site.admission_control import AdmissionTerms, NotAdmittedError
from winnow.deploy.site.budget_records import QuestionBudget, epsilon_left
from winnow.deploy.site.data_fingerprint import DataFingerprint
from winnow.deploy.site.database_query_export import fetch_rows
from winnow.deploy.site.job_processes import JobProcesses
from winnow.deploy.site.noise_secret import noise_seed
from winnow.deploy.site.process_spec import ProcessSpec
from winnow.deploy.site.result_delivery import ResultDelivery
from winnow.deploy.site.shared_job_context import SiteContext
from winnow.deploy.site.signing_proxy import SigningProxy
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.messages import DataDescription, DeployJob
from winnow.deploy.wire.resumable_blob_files import BlobFolder

if TYPE_CHECKING:
    from winnow.analytics.question import Question


@dataclass(frozen=True, kw_only=True)
class PreparedJob:
    """A job that can run tasks."""

    description: DataDescription
    processes: JobProcesses
    proxy: SigningProxy
    delivery: ResultDelivery

    def assign_client_numbers(self, first: int) -> None:
        self.proxy.fix_client_numbers(first, len(self.description.sizes))
        self.processes.assign_client_numbers(first)


class JobSetup:
    """Of one job; one thread uses it, and any other may stop it."""

    def __init__(self, context: SiteContext, job: str, cancelled: set[str]) -> None:
        self.author: Peer | None = None
        """Who signed the job, once that is verified."""
        self._context, self._job, self._cancelled = context, job, cancelled
        self._folder = context.folder(job)
        self._bundle: Bundle | None = None
        self._question: Question | None = None
        self._fingerprint: DataFingerprint | None = None
        self._processes: JobProcesses | None = None
        self._stopping = Event()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def prepare(self, deploy: DeployJob) -> PreparedJob:
        """Raises whatever speaks against the job."""
        context = self._context
        self._folder.create()
        spool = BlobFolder(self._folder.downloads, quota=context.config.disk_mb * MB)
        if deploy.bundle.size > MAX_BUNDLE_BYTES:
            raise ConfigError(f"the bundle has {deploy.bundle.size} bytes; the limit is {MAX_BUNDLE_BYTES}")
        path = context.uplink.fetch(self._job, deploy.bundle, spool)
        bundle = self._bundle = read_bundle(path.read_bytes())
        self._question = _question(bundle)
        terms = self.admit(deploy)
        submission = self._claimed_submission(bundle)
        data = self._worker_table(terms)
        self._fingerprint = self._fingerprint or DataFingerprint(context.state.submissions, submission, data)
        self._fingerprint.check(started=deploy.first_client is not None)
        spec = ProcessSpec(
            job=self._job,
            folder=self._folder,
            bundle=path,
            data=data,
            terms=terms,
            limits=context.resources.allocate(self._job, deploy.resources),
            worker=context.worker,
            output_filter=context.output_filter,
            launch=None if self._question is None else context.warm_worker.launch,
            epsilon_left=self._epsilon_left(terms),
            noise_seed=b"" if self._question is None else noise_seed(Path(context.config.state), submission),
        )
        processes = self._processes = JobProcesses(spec, self._stopping)
        proxy = SigningProxy(
            context.kit,
            context.state.submissions,
            submission,
            job=self._job,
            allowed_sites=bundle.named_sites,
            may_keep_masks=context.admission.may_keep_masks,
            budget=lambda: self._budget(processes.spec.terms),
        )
        delivery = ResultDelivery(context, self._job, processes, proxy, spool, self._cancelled)
        delivery.delete_unneeded_files(-1, deploy.bundle.digest)
        description = processes.prepare(proxy.first_client_number(deploy.first_client))
        proxy.fix_client_numbers(deploy.first_client, len(description.sizes))
        return PreparedJob(description=description, processes=processes, proxy=proxy, delivery=delivery)

    def admit(self, deploy: DeployJob) -> AdmissionTerms:
        """The terms on which the job is admitted now; raises if it is not, or no longer."""
        assert self._bundle is not None
        self.author = self._context.admission.author(self._bundle)
        terms = self._context.admission.admit(deploy, self._bundle, self.author, self._question)
        if (budget := self._budget(terms)) is not None and (shortage := budget.shortage()):
            raise NotAdmittedError(shortage)
        return terms

    def check_data(self) -> None:
        """Raise if the data changed since the job started."""
        assert self._fingerprint is not None
        self._fingerprint.check()

    def close(self) -> None:
        """End the job's processes and release its resources."""
        if self._processes is not None:
            self._processes.close()
            self._processes = None
        self._context.resources.release(self._job)

    def stop(self) -> None:
        """Kill the job's processes for good. For any thread."""
        self._stopping.set()  # first: processes that are not seen below see this before they start one
        processes = self._processes  # another thread may close them meanwhile
        if processes is not None:
            processes.kill()

    def _budget(self, terms: AdmissionTerms) -> QuestionBudget | None:
        """What the question costs its author, where it has noise and the site's rule limits that."""
        question, rule = self._question, terms.rule
        if question is None or question.epsilon is None or rule is None or rule.noise is None:
            return None
        assert self._bundle is not None
        return QuestionBudget(
            budgets=self._context.state.budgets,
            submission=submission_id(self._bundle),
            site=self._context.kit.name,
            person=terms.author.name,
            table=question.table,
            epsilon=question.epsilon,
            delta=question.delta,
            limit=rule.noise,
        )

    def _epsilon_left(self, terms: AdmissionTerms) -> float | None:
        """What the author has left, where that is the question."""
        question, rule = self._question, terms.rule
        if question is None or not question.opens_nothing or rule is None or rule.noise is None:
            return None
        spent = self._context.state.budgets.spent(terms.author.name, question.table)
        return epsilon_left(rule.noise, spent)

    def _claimed_submission(self, bundle: Bundle) -> str:
        """The submission's id; raises if it is too old, or runs here under another name."""
        if self._context.state.deployment(self._job) is None:
            self._context.admission.check_date(bundle)
        submission = submission_id(bundle)
        if (name := self._context.state.submissions.claim(submission, self._job)) != self._job:
            raise ConfigError(f"this signed bundle already ran here as job {name}; submit the job again")
        return submission

    def _worker_table(self, terms: AdmissionTerms) -> dict[str, Any]:
        """The table by which the worker reads the data; a helper has none."""
        if self._question is not None and terms.rule is None:
            return {}
        question = {} if self._question is None else self._question.model_dump(mode="json")
        if self._question is not None and len(self._question.tables) > 1:
            tables, folder = self._context.config.tables, self._folder.data
            if len(terms.tables) < len(self._question.tables):
                question = {}  # of a join between owners nobody learns which rows meet a condition: all are matched
            return {
                "tables": {
                    name: tables[name].worker_table(name, folder, question, self._stopping.is_set)
                    for name in terms.tables
                }
            }
        if (table := self._context.config.tables.get(terms.data)) is not None:
            return table.worker_table(terms.data, self._folder.data, question, self._stopping.is_set)
        source = self._context.config.data[terms.data]
        if source.url is None or source.query is None:
            return source.worker_table()
        rows = self._folder.data / f"{terms.data}.csv"
        fetch_rows(terms.data, source.url, source.query, rows, self._stopping.is_set)
        return source.worker_table(rows)


def _question(bundle: Bundle) -> "Question | None":
    section = bundle.question
    if section is None:
        return None
    from winnow.analytics.question import read_question  # noqa: PLC0415 - an idle agent loads no pydantic

    return read_question(section)
