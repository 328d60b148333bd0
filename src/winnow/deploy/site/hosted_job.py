"""A job at a site: checked, prepared, its tasks run, and all of it deleted when it stops."""

import logging
import shutil
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TypeAlias

from winnow.core.errors import WinnowError
from winnow.deploy.site.job_processes import JobProcesses, JobStoppedError
from winnow.deploy.site.job_setup import JobSetup, PreparedJob
from winnow.deploy.site.shared_job_context import SiteContext
from winnow.deploy.wire.errors import UnreachableError, one_line
from winnow.deploy.wire.messages import AssignTask, ClientResult, DeployJob, Settle, WireTask
from winnow.deploy.wire.task_digest import compute_task_id

log = logging.getLogger(__name__)

JobInstruction: TypeAlias = DeployJob | AssignTask | Settle


class HostedJob(Thread):
    """Takes instructions from the agent and follows them one by one, in its own thread.

    `after` is a job of the same name that is still being stopped.
    """

    def __init__(self, context: SiteContext, job: str, *, after: "HostedJob | None" = None) -> None:
        super().__init__(name=f"job-{job}", daemon=True)
        self.job = job
        self._context, self._after = context, after
        self._folder = context.folder(job)
        self._instructions: SimpleQueue[JobInstruction | None] = SimpleQueue()
        self._cancelled: set[str] = set()
        self._setup = JobSetup(context, job, self._cancelled)
        self._forget = False
        self._deploy: DeployJob | None = None
        self._prepared: PreparedJob | None = None
        self._suspended = False
        self._rejection_reason = ""
        """The reason last reported for not participating."""

    # For the agent's thread -------------------------------------------------------------------------------------------

    def enqueue(self, instruction: JobInstruction) -> None:
        if isinstance(instruction, AssignTask):
            self._cancelled.discard(instruction.task.id)  # it is asked for again
        self._instructions.put(instruction)

    def cancel(self, tasks: list[str]) -> None:
        self._cancelled.update(tasks)

    def end(self, *, forget: bool) -> None:
        """Stop at once; with `forget` everything that the job left here is deleted."""
        self._forget = self._forget or forget
        self._setup.stop()
        self._instructions.put(None)

    # In its own thread ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        if self._after is not None:
            self._after.join()
        while (instruction := self._instructions.get()) is not None and not self._setup.stopping:
            try:
                match instruction:
                    case DeployJob():
                        self._join(instruction)
                    case AssignTask():
                        self._run_task(instruction.task)
                    case Settle():
                        self._delete_settled(instruction.round)
            except JobStoppedError:
                break
            except UnreachableError as error:  # in a new session the server asks again
                log.error("job %s: %s", self.job, one_line(error))
            except (WinnowError, OSError) as error:
                log.error("job %s: %s", self.job, one_line(error))
                self._report_error(instruction, str(error))
            except Exception:
                log.exception(
                    "job %s: internal error in the agent; the job continues with its next instruction", self.job
                )
                self._report_error(instruction, "the site's agent failed; see the site's log")
        self._clean_up()

    def _report_error(self, instruction: JobInstruction, reason: str) -> None:
        """The server must not wait for what failed here."""
        if self._context.uplink.delivery_failed:  # in a new session it asks again
            return
        if isinstance(instruction, AssignTask):
            self._reject_task(instruction.task, reason)
        elif isinstance(instruction, DeployJob):
            self._withdraw(reason)

    def _join(self, deploy: DeployJob) -> None:
        """Participate, or report why not. Deployed again, report it again."""
        before = self._context.state.deployment(self.job)
        if before is not None and before.bundle != deploy.bundle:
            log.error("job %s: the server sent a different bundle under this name, which was ignored", self.job)
            return
        self._deploy = deploy
        try:
            prepared = self._prepare(deploy)
            self._context.state.save_job(deploy)
            prepared.delivery.set_peer_sites(deploy.peer_sites)
        except (JobStoppedError, UnreachableError):
            raise
        except (WinnowError, OSError) as error:
            if self._setup.stopping:
                raise JobStoppedError(f"job {self.job} is being stopped") from error
            self._reject(str(error))
            return
        self._rejection_reason = ""
        self._context.uplink.report_deploy_result(self.job, prepared.description)

    def _prepare(self, deploy: DeployJob) -> PreparedJob:
        if self._prepared is None:
            self._prepared = self._setup.prepare(deploy)
            data = self._prepared.processes.spec.terms.data
            self._audit("accepted", f"with data {data}")
            log.info("job %s accepted, with data %s", self.job, data)
        elif deploy.first_client is not None:
            self._setup.check_data()
            self._prepared.assign_client_numbers(deploy.first_client)
        return self._prepared

    def _reject(self, reason: str) -> None:
        """Do not participate, until the server asks again and nothing speaks against it. The same reason is logged
        once.
        """
        known, self._rejection_reason = self._rejection_reason, reason
        if known != reason:
            log.warning("job %s rejected: %s", self.job, one_line(reason))
        self._withdraw(reason)
        if known != reason:
            self._audit("rejected", one_line(reason))

    def _withdraw(self, reason: str) -> None:
        self._prepared = None
        self._setup.close()
        self._context.uplink.report_deploy_result(self.job, None, reason)

    def _run_task(self, task: WireTask) -> None:
        if task.id in self._cancelled:
            return
        if task.id != compute_task_id(task):
            self._reject_task(task, "the task's id does not match its content")
        elif self._prepared is None:
            self._reject_task(task, "this site does not participate in the job")
        elif reason := self._suspension_reason(self._prepared.processes):
            self._reject_task(task, reason)
        elif reason := self._data_change():
            self._reject(reason)  # the server fails the task, or keeps it for us
        else:
            self._prepared.delivery.deliver(task)

    def _delete_settled(self, round: int) -> None:
        if self._prepared is not None and self._deploy is not None:
            self._prepared.delivery.delete_unneeded_files(round, self._deploy.bundle.digest)
            if self._instructions.empty():
                self._cancelled.clear()

    def _reject_task(self, task: WireTask, reason: str) -> None:
        for client in task.clients:
            self._context.uplink.submit_result(
                ClientResult(job=self.job, task=task.id, client=client, stage="admission", failure=one_line(reason))
            )

    def _data_change(self) -> str | None:
        """Why the job may not go on with the data, if so."""
        try:
            self._setup.check_data()
        except WinnowError as error:
            return str(error)
        return None

    def _suspension_reason(self, processes: JobProcesses) -> str | None:
        """Why this job may not run here now, if so. The policy may have changed, and may change again."""
        assert self._deploy is not None
        try:
            terms = self._setup.admit(self._deploy)
        except WinnowError as error:
            if not self._suspended:
                log.warning(
                    "job %s suspended: %s; its tasks fail until it is admitted again", self.job, one_line(error)
                )
                self._audit("suspended", one_line(error))
                processes.close()
            self._suspended = True
            return str(error)
        if terms != processes.spec.terms:
            log.info("job %s continues under this site's changed policy", self.job)
            processes.set_terms(terms)
        if self._suspended:
            log.info("job %s resumed", self.job)
            self._audit("resumed", "")
        self._suspended = False
        return None

    def _clean_up(self) -> None:
        self._setup.stop()
        self._setup.close()
        for step in (self._keep_results, self._delete_all) if self._forget else ():
            try:
                step()
            except WinnowError as error:
                log.error("job %s: %s", self.job, error)

    def _keep_results(self) -> None:
        results = self._context.config.results
        if results is None:
            return
        target, states = Path(results) / self.job, self._context.state.client_state_files(self.job)
        if kept := self._folder.keep_results(target) + self._folder.keep_client_state(states, target):
            self._audit("results kept", f"files in {target}: {kept}")

    def _delete_all(self) -> None:
        self._context.state.delete_job(self.job)
        shutil.rmtree(self._folder.path, ignore_errors=True)

    def _audit(self, what: str, outcome: str) -> None:
        """Under the author's name once it is verified; before, there is only the server's word."""
        author, deploy = self._setup.author, self._deploy or self._context.state.deployment(self.job)
        self._context.audit.append(
            who=author.name if author else deploy.submitter if deploy else "",
            organisation=author.organisation if author else "",
            what=f"job {what}",
            target=self.job,
            outcome=outcome,
        )
