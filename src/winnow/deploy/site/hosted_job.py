"""A job at a site: judged, prepared, its tasks answered, and all of it gone when it stops."""

import logging
import shutil
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeAlias

from winnow.core.errors import ConfigError, WinnowError
from winnow.deploy.jobs.bundle_format import MAX_BUNDLE_BYTES, Bundle, read_bundle
from winnow.deploy.jobs.signed_statements import submission_id
from winnow.deploy.sandbox.isolation import MB
from winnow.deploy.site.admission_control import AdmissionTerms
from winnow.deploy.site.context import SiteContext
from winnow.deploy.site.data_fingerprint import DataFingerprint
from winnow.deploy.site.database_query import fetch_rows
from winnow.deploy.site.job_processes import JobProcesses, JobStoppedError
from winnow.deploy.site.process_spec import ProcessSpec
from winnow.deploy.site.result_delivery import ResultDelivery
from winnow.deploy.site.results import keep_results
from winnow.deploy.site.signing_proxy import SigningProxy
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.blob_folder import BlobFolder
from winnow.deploy.wire.errors import UnreachableError, one_line
from winnow.deploy.wire.messages import AssignTask, ClientResult, DataDescription, DeployJob, Settle, WireTask
from winnow.deploy.wire.task_digest import compute_task_id

log = logging.getLogger(__name__)

JobOrder: TypeAlias = DeployJob | AssignTask | Settle


class HostedJob(Thread):
    """Takes orders from the agent and follows them one by one, in its own thread.

    `after` is a job of the same name that is still being stopped.
    """

    def __init__(self, office: SiteContext, job: str, *, after: "HostedJob | None" = None) -> None:
        super().__init__(name=f"job-{job}", daemon=True)
        self.job = job
        self._office, self._after = office, after
        self._folder = office.folder(job)
        self._orders: SimpleQueue[JobOrder | None] = SimpleQueue()
        self._cancelled: set[str] = set()
        self._lock = Lock()
        self._over = self._forget = False
        self._labour: JobProcesses | None = None
        self._answers: ResultDelivery | None = None
        self._description: DataDescription | None = None
        self._fingerprint: DataFingerprint | None = None
        self._author: Peer | None = None
        self._barred = False
        self._refused = ""
        """Why we last said that we do not take part."""

    # For the agent's thread -------------------------------------------------------------------------------------------

    def order(self, order: JobOrder) -> None:
        if isinstance(order, AssignTask):
            self._cancelled.discard(order.task.id)  # it is asked for again
        self._orders.put(order)

    def cancel(self, tasks: list[str]) -> None:
        self._cancelled.update(tasks)

    def end(self, *, forget: bool) -> None:
        """Stop at once; with `forget` all that the job left here is deleted."""
        with self._lock:
            self._over, self._forget = True, self._forget or forget
            labour = self._labour
        if labour is not None:
            labour.stop()
        self._orders.put(None)

    # In its own thread ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        if self._after is not None:
            self._after.join()
        while (order := self._orders.get()) is not None and not self._over:
            try:
                self._follow(order)
            except JobStoppedError:
                break
            except (WinnowError, OSError) as error:
                log.error("job %s: %s", self.job, one_line(error))
                self._tell(order, str(error))
            except Exception:
                log.exception("job %s: a bug in the agent", self.job)
                self._tell(order, "the site's agent failed; its log says how")
        self._leave()

    def _tell(self, order: JobOrder, reason: str) -> None:
        """Nobody shall wait for what we could not do."""
        if isinstance(order, AssignTask) and not self._office.uplink.lost:  # else it is asked again
            self._decline(order.task, reason)

    def _follow(self, order: JobOrder) -> None:
        if isinstance(order, DeployJob):
            self._join_in(order)
        elif isinstance(order, AssignTask):
            self._answer(order.task)
        elif self._answers is not None:
            self._answers.sweep(order.round, self._deploy.bundle.digest)
            if self._orders.empty():
                self._cancelled.clear()

    def _join_in(self, order: DeployJob) -> None:
        """Take part, or say why not. Asked again, say it again."""
        before = self._office.state.deployed(self.job)
        if before is not None and before.bundle != order.bundle:
            raise ConfigError("the server deploys another bundle under the name of a job that runs here; ignored")
        self._deploy = order
        try:
            if self._description is None:
                self._description = self._prepare(order)
            elif order.first_client is not None and self._labour is not None:
                assert self._fingerprint is not None
                self._fingerprint.check()
                self._notary.number(order.first_client, len(self._description.sizes))
                self._labour.assign_numbers(order.first_client)
            self._office.state.remember(order)
        except (JobStoppedError, UnreachableError):
            raise
        except (WinnowError, OSError) as error:
            if self._over:
                raise JobStoppedError(f"job {self.job} is being stopped") from error
            self._refuse(str(error))
            return
        if self._answers is not None:
            self._answers.know(order.peer_sites)
        self._refused = ""
        self._office.uplink.joined(self.job, self._description)

    def _prepare(self, order: DeployJob) -> DataDescription:
        self._folder.make()
        spool = BlobFolder(self._folder.parts, quota=self._office.config.disk_mb * MB)
        if order.bundle.size > MAX_BUNDLE_BYTES:
            raise ConfigError(f"its bundle has {order.bundle.size} bytes; {MAX_BUNDLE_BYTES} are the most")
        path = self._office.uplink.fetch(self.job, order.bundle, spool)
        self._bundle: Bundle = read_bundle(path.read_bytes())
        terms = self._terms()
        if self._office.state.deployed(self.job) is None:
            self._office.judge.check_date(self._bundle)
        submission = submission_id(self._bundle)
        if (name := self._office.state.claim(submission, self.job)) != self.job:
            raise ConfigError(f"what its author signed ran here as job {name}; it must be submitted anew")
        data = self._data(terms)
        self._fingerprint = self._fingerprint or DataFingerprint(self._office.state, submission, data)
        self._fingerprint.check(started=order.first_client is not None)
        place = ProcessSpec(
            job=self.job,
            folder=self._folder,
            bundle=path,
            data=data,
            terms=terms,
            limits=self._office.room.take(self.job, order.resources),
            worker=self._office.worker,
            screen=self._office.gate,
        )
        labour = JobProcesses(place)
        with self._lock:
            if self._over:
                raise JobStoppedError(f"job {self.job} is being stopped")
            self._labour = labour
        office = self._office
        self._notary = SigningProxy(
            office.kit,
            office.state,
            submission,
            named=self._bundle.named_sites,
            keeps=office.judge.keeps_masks,
        )
        self._answers = ResultDelivery(self._office, self.job, labour, self._notary, spool, self._cancelled)
        self._answers.sweep(-1, order.bundle.digest)
        description = labour.prepare(self._notary.first_number(order.first_client))
        self._notary.number(order.first_client, len(description.sizes))
        self._note("joined", f"with data {terms.data}")
        log.info("job %s runs here, with data %s", self.job, terms.data)
        return description

    def _data(self, terms: AdmissionTerms) -> dict[str, Any]:
        """The table that the worker reads the data by."""
        source = self._office.config.data[terms.data]
        if source.url is None or source.query is None:
            return source.table()
        rows = self._folder.data / f"{terms.data}.csv"
        fetch_rows(terms.data, source.url, source.query, rows, lambda: self._over)
        return source.table(rows)

    def _terms(self) -> AdmissionTerms:
        """On what terms the job is admitted now; raises where it is not, or no longer."""
        self._author = self._office.judge.author(self._bundle)
        return self._office.judge.admit(self._deploy, self._bundle, self._author)

    def _refuse(self, reason: str) -> None:
        """Take no part, until we are asked again and can. The same reason is noted once."""
        known, self._refused = self._refused, reason
        if known != reason:
            log.warning("job %s does not run here: %s", self.job, one_line(reason))
        if self._labour is not None:
            self._labour.rest()
        with self._lock:
            self._labour = self._answers = None
        self._description = None
        self._office.room.give_back(self.job)
        self._office.uplink.joined(self.job, None, reason)
        if known != reason:
            self._note("refused", one_line(reason))

    def _answer(self, task: WireTask) -> None:
        if task.id in self._cancelled:
            return
        if task.id != compute_task_id(task):
            self._decline(task, "the task says something else than what it is named by")
        elif self._answers is None or self._labour is None or self._description is None:
            self._decline(task, "this site takes no part in the job")
        elif reason := self._reason_against(self._labour):
            self._decline(task, reason)
        elif reason := self._changed_data():
            self._refuse(reason)  # the server fails the task, or keeps it for us
        else:
            self._answers.give(task)

    def _decline(self, task: WireTask, reason: str) -> None:
        for client in task.clients:
            declined = ClientResult(
                job=self.job, task=task.id, client=client, stage="admission", failure=one_line(reason)
            )
            self._office.uplink.give(declined, None)

    def _changed_data(self) -> str:
        """Why no process of the job may go on with the data, if so."""
        assert self._fingerprint is not None
        try:
            self._fingerprint.check()
        except WinnowError as error:
            return str(error)
        return ""

    def _reason_against(self, labour: JobProcesses) -> str | None:
        """Why this job may do nothing here now. The policy may have changed, and may change again."""
        try:
            terms = self._terms()
        except WinnowError as error:
            if not self._barred:
                log.warning("job %s may not go on here: %s", self.job, one_line(error))
                self._note("barred", one_line(error))
                labour.rest()
            self._barred = True
            return str(error)
        if terms != labour.place.terms:
            log.info("job %s goes on under changed terms of this site's policy", self.job)
            labour.change(terms)
        self._barred = False
        return None

    def _leave(self) -> None:
        if self._labour is not None:
            self._labour.stop()
            self._labour.rest()
        self._office.room.give_back(self.job)
        for step in (self._keep_results, self._forget_all) if self._forget else ():
            try:
                step()
            except WinnowError as error:
                log.error("job %s: %s", self.job, error)

    def _keep_results(self) -> None:
        place = self._office.config.results
        if place is not None and (kept := keep_results(self._folder, Path(place) / self.job)):
            self._note("left files", str(kept))

    def _forget_all(self) -> None:
        self._office.state.forget(self.job)
        shutil.rmtree(self._folder.path, ignore_errors=True)

    def _note(self, what: str, outcome: str) -> None:
        """Who the author is counts once it is verified; before, there is only what the server says."""
        self._office.audit.append(
            who=self._author.name if self._author else self._deploy.submitter,
            organisation=self._author.organisation if self._author else "",
            what=f"job {what}",
            target=self.job,
            outcome=outcome,
        )
