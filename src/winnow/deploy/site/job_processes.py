"""The processes of one job: its worker and, for own code under mandatory filters, an output filter behind it.

Code in a process cannot be trusted to leave that process's filters alone. So results of a job's own code pass through
a second process, which runs none of it.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator
from threading import Event, Lock
from typing import TypeAlias

from msgspec.structs import replace

from winnow.core.errors import WinnowError
from winnow.deploy.jobs.ipc_messages import (
    AgentRequest,
    AgentResponse,
    AssignClientNumbers,
    CannotRunJob,
    FilterResult,
    FromWorker,
    JobReady,
    PrepareJob,
    RunTask,
    TaskResult,
    WorkerLogLine,
)
from winnow.deploy.site.admission_control import AdmissionTerms
from winnow.deploy.site.process_spec import ProcessSpec
from winnow.deploy.site.symlink_safe_move import import_file
from winnow.deploy.site.worker_process_handle import WorkerExitedError, WorkerProcess
from winnow.deploy.wire.errors import one_line
from winnow.deploy.wire.messages import ClientResult, DataDescription

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 2
"""A task that ends its process so often fails."""
CANCEL_GRACE_SECONDS = 10.0
"""Seconds that a worker may go on with a cancelled task before it is killed for the next one."""
MAX_LINES_PER_TASK = 1000
"""Lines that a job's processes may add to the site's log during one task; the rest is dropped."""
MAX_LINE_LENGTH = 4096

REDACTED_FAILURE = "the job's own code failed, or its result did not pass this site's filters; see the site's log"

SigningCallback: TypeAlias = Callable[[AgentRequest], AgentResponse]
"""Does what only the holder of the site's key and records can do."""


class CannotRunJobError(WinnowError):
    """The job's process reports that it cannot run the job."""


class JobStoppedError(WinnowError):
    """The job is being stopped."""


class JobProcesses:
    """One thread runs tasks. Another sets `stopping` and calls `kill`: then all that goes on raises JobStoppedError."""

    def __init__(self, spec: ProcessSpec, stopping: Event) -> None:
        self.spec = spec
        self._stopping = stopping
        self._first_client: int | None = None
        self._worker: WorkerProcess | None = None
        self._output_filter: WorkerProcess | None = None
        self._logged = 0
        self._lock = Lock()

    @property
    def worker_id(self) -> str:
        """Of the present worker; an id that no worker has if there is none."""
        return self._worker.life if self._worker is not None and self._worker.alive else "-"

    def prepare(self, first_client: int | None) -> DataDescription:
        """Start the worker and describe the data. Raises CannotRunJobError or WorkerExitedError.

        A worker's description could contain anything that the data do, so if there is an output filter, it describes.
        """
        self._first_client = first_client
        self.close()
        if not self.spec.filters_output:
            return self._start_worker()
        description = self._start_output_filter(with_data=True)
        try:
            self._start_worker()
        except (CannotRunJobError, WorkerExitedError) as error:
            raise CannotRunJobError(self.redact_failure(str(error))) from error
        return description

    def redact_failure(self, reason: str) -> str:
        """What others may know of a failure: only that there was one, where the text could get around the filters."""
        if not self.spec.filters_output:
            return reason
        log.warning("job %s: %s", self.spec.job, one_line(reason))
        return REDACTED_FAILURE

    def assign_client_numbers(self, first_client: int) -> None:
        """The job's clients have been numbered, and ours begin here."""
        if self._first_client is None and self._worker is not None and self._worker.alive:
            self._worker.send(AssignClientNumbers(first_client=first_client))
        self._first_client = first_client

    def run_task(self, run: RunTask, cancelled: Callable[[], bool], sign: SigningCallback) -> Iterator[TaskResult]:
        """Each client's result, its files still where the worker wrote them."""
        waiting, reason = set(run.task.clients), ""
        self._logged = 0
        for _ in range(MAX_ATTEMPTS):
            try:
                worker = self._running_worker()
                clients = [each for each in run.task.clients if each in waiting]
                worker.send(replace(run, task=replace(run.task, clients=clients)))
                yield from self._results(worker, waiting, cancelled, sign)
            except WorkerExitedError as error:
                reason = str(error)
            except CannotRunJobError as error:
                reason = str(error)
                break
            if not waiting or cancelled():
                return
        for client in sorted(waiting):
            result = ClientResult(job=self.spec.job, task=run.task.id, client=client, stage="working", failure=reason)
            yield TaskResult(result=result)

    def filter_result(self, run: RunTask, task_result: TaskResult) -> TaskResult:
        """The result as the site's filters let it out. Raises if they fail: nothing passes around them."""
        if self._output_filter is None or not self._output_filter.alive:
            self._start_output_filter(with_data=False)
        assert self._output_filter is not None
        files = {key: self._move_to_filter(key, getattr(task_result, key)) for key in ("payload", "new_client_state")}
        alone = replace(run, task=replace(run.task, clients=[task_result.result.client]))
        self._output_filter.send(FilterResult(task=alone, result=replace(task_result, **files)))
        while True:
            message = self._receive(self._output_filter)
            if isinstance(message, TaskResult):
                return message
            if isinstance(message, CannotRunJob):
                raise CannotRunJobError(f"this site's filters rejected the result: {message.reason}")

    def set_terms(self, terms: AdmissionTerms) -> None:
        """From the next task on, the processes run on other terms."""
        self.close()
        self.spec = dataclasses.replace(self.spec, terms=terms)

    def close(self) -> None:
        """End the processes; the next task starts them again."""
        for process in (self._worker, self._output_filter):
            if process is not None:
                process.close()

    def kill(self) -> None:
        """Kill the processes, whatever they do. For other threads, once they have set `stopping`."""
        with self._lock:
            for process in (self._worker, self._output_filter):
                if process is not None:
                    process.kill()

    def _running_worker(self) -> WorkerProcess:
        if self._worker is None or not self._worker.alive:
            self._start_worker()
        assert self._worker is not None
        return self._worker

    def _start_worker(self) -> DataDescription:
        if self._worker is not None:
            self._worker.close()
        with self._lock:
            self._check_stopping()
            self._worker = self.spec.launch_worker()
        return self._ready(self._worker, self.spec.worker_message(self._first_client))

    def _start_output_filter(self, *, with_data: bool) -> DataDescription:
        if self._output_filter is not None:
            self._output_filter.close()
        with self._lock:
            self._check_stopping()
            self._output_filter = self.spec.launch_output_filter()
        return self._ready(self._output_filter, self.spec.output_filter_message(with_data=with_data))

    def _ready(self, process: WorkerProcess, prepare: PrepareJob) -> DataDescription:
        process.send(prepare)
        while True:
            message = self._receive(process)
            if isinstance(message, JobReady):
                return message.data
            if isinstance(message, CannotRunJob):
                process.close()
                raise CannotRunJobError(message.reason)

    def _results(
        self, worker: WorkerProcess, waiting: set[int], cancelled: Callable[[], bool], sign: SigningCallback
    ) -> Iterator[TaskResult]:
        cancelled_at: float | None = None
        while waiting:
            message = self._receive(worker)
            if isinstance(message, TaskResult) and message.result.client in waiting:
                waiting.discard(message.result.client)
                yield message
            elif isinstance(message, AgentRequest):
                worker.send(sign(message))
            elif isinstance(message, CannotRunJob):
                raise CannotRunJobError(message.reason)
            if cancelled():
                cancelled_at = cancelled_at or time.monotonic()
                if time.monotonic() - cancelled_at > CANCEL_GRACE_SECONDS:
                    worker.kill()
                    return

    def _receive(self, process: WorkerProcess) -> FromWorker | None:
        """The next message, or None after a short while. A line for the site's log is logged."""
        try:
            message = process.receive()
        except WorkerExitedError:
            self._check_stopping()
            raise
        if isinstance(message, WorkerLogLine):
            self._log(message.line)
            return None
        return message

    def _log(self, line: str) -> None:
        """Write a line to the site's log, which nobody else sees. A job's process may send any number of them."""
        self._logged += 1
        if self._logged <= MAX_LINES_PER_TASK:
            log.warning("job %s: %s", self.spec.job, one_line(line[:MAX_LINE_LENGTH]))
        elif self._logged == MAX_LINES_PER_TASK + 1:
            log.warning(
                "job %s: more than %d log lines in one task; dropped the rest", self.spec.job, MAX_LINES_PER_TASK
            )

    def _move_to_filter(self, key: str, claimed: str | None) -> str | None:
        """A file of the worker's, moved to where the output filter reads it."""
        if claimed is None:
            return None
        target = self.spec.folder.output_filter / f"in-{key}.safetensors"
        import_file(self.spec.folder.work, claimed, target)
        return str(target)

    def _check_stopping(self) -> None:
        if self._stopping.is_set():
            raise JobStoppedError(f"job {self.spec.job} is being stopped")
