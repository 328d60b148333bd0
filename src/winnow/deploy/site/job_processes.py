"""The processes of one job: its worker, and where strangers' code meets forced filters, the gate behind it.

Code in a process cannot be trusted to leave that process's filters alone. So answers made by a job's own code pass
through a second process, which runs none of it.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator
from threading import Event, Lock
from typing import TypeAlias

from msgspec.structs import replace

from winnow.core.errors import WinnowError
from winnow.deploy.jobs.ipc import (
    AssignClientNumbers,
    CannotRunJob,
    FilterResult,
    FromWorker,
    JobReady,
    ReleaseNoteRequest,
    ReleaseNoteResponse,
    ReleaseRequest,
    ReleaseResponse,
    RunTask,
    SignRequest,
    SignResponse,
    TaskResult,
    WorkerLogLine,
)
from winnow.deploy.site.admission_control import AdmissionTerms
from winnow.deploy.site.import_untrusted import import_file
from winnow.deploy.site.process_spec import ProcessSpec
from winnow.deploy.site.worker_process import WorkerExitedError, WorkerProcess
from winnow.deploy.wire.errors import one_line
from winnow.deploy.wire.messages import ClientResult, DataDescription

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 2
"""A task that ends its process so often is answered with a failure."""
CANCEL_GRACE_SECONDS = 10.0
"""Seconds that a process may go on with a task that nobody waits for, before it is ended for the next one."""
MAX_LINES_PER_TASK = 1000
"""Lines that a job's processes may add to the site's log during one task; the rest is dropped."""
MAX_LINE_LENGTH = 4096

REDACTED_FAILURE = "the job's own code failed here, or did not pass this site's filters; the site's log says how"

SigningCallback: TypeAlias = Callable[
    [SignRequest | ReleaseRequest | ReleaseNoteRequest], SignResponse | ReleaseResponse | ReleaseNoteResponse
]
"""Does what only the holder of the site's key and records can do."""


class CannotRunJobError(WinnowError):
    """The job's process says that the job cannot be done here."""


class JobStoppedError(WinnowError):
    """The job is being stopped."""


class JobProcesses:
    """One thread has the work done; any other may stop it."""

    def __init__(self, place: ProcessSpec) -> None:
        self.place = place
        self._logged = 0
        self._clients_from: int | None = None
        self._worker: WorkerProcess | None = None
        self._gate: WorkerProcess | None = None
        self._stopped = Event()
        self._lock = Lock()

    @property
    def life(self) -> str:
        """Of the present worker; a word that no other has if there is none."""
        return self._worker.life if self._worker is not None and self._worker.alive else "-"

    def prepare(self, clients_from: int | None) -> DataDescription:
        """Start the worker; what the data are. Raises CannotError or WorkerDiedError.

        A description could hold anything that the data do, so where there is a gate, it is the gate's.
        """
        self._clients_from = clients_from
        self.rest()
        if not self.place.gated:
            self._worker, description = self._started(gate=False)
            return description
        self._gate, description = self._started(gate=True, data=True)
        try:
            self._worker, _ = self._started(gate=False)
        except (CannotRunJobError, WorkerExitedError) as error:
            raise CannotRunJobError(self.told(str(error))) from error
        return description

    def told(self, reason: str) -> str:
        """What others may hear of a failure: that there was one, where words would be a way around the filters."""
        if not self.place.gated:
            return reason
        log.warning("job %s: %s", self.place.job, one_line(reason))
        return REDACTED_FAILURE

    def assign_numbers(self, clients_from: int) -> None:
        """The job's clients have been numbered, and ours begin here."""
        if self._clients_from is None and self._worker is not None and self._worker.alive:
            self._worker.send(AssignClientNumbers(clients_from=clients_from))
        self._clients_from = clients_from

    def do(self, order: RunTask, cancelled: Callable[[], bool], certify: SigningCallback) -> Iterator[TaskResult]:
        """Each client's answer, its files still where the process wrote them."""
        waiting, reason = set(order.task.clients), ""
        self._logged = 0
        for _ in range(MAX_ATTEMPTS):
            try:
                worker = self._ready()
                clients = [each for each in order.task.clients if each in waiting]
                worker.send(replace(order, task=replace(order.task, clients=clients)))
                yield from self._answers(worker, waiting, cancelled, certify)
            except WorkerExitedError as error:
                reason = str(error)
            except CannotRunJobError as error:
                reason = str(error)
                break
            if not waiting or cancelled():
                return
        for client in sorted(waiting):
            answer = ClientResult(
                job=self.place.job, task=order.task.id, client=client, stage="working", failure=reason
            )
            yield TaskResult(answer=answer)

    def screen(self, order: RunTask, did: TaskResult) -> TaskResult:
        """The answer as the site's filters let it out. Raises if the gate fails: nothing passes around it."""
        if self._gate is None or not self._gate.alive:
            self._end(self._gate)
            self._gate, _ = self._started(gate=True)
        files = {key: self._inside(key, getattr(did, key)) for key in ("payload", "new_client_state")}
        alone = replace(order, task=replace(order.task, clients=[did.answer.client]))
        self._gate.send(FilterResult(order=alone, did=replace(did, **files)))
        while True:
            message = self._heard(self._gate)
            if isinstance(message, TaskResult):
                return message
            if isinstance(message, CannotRunJob):
                raise CannotRunJobError(f"a filter of this site: {message.reason}")

    def _inside(self, key: str, claimed: str | None) -> str | None:
        """A file of the worker's, moved to where the gate reads it."""
        if claimed is None:
            return None
        inside = self.place.folder.gate / f"in-{key}.safetensors"
        import_file(self.place.folder.work, claimed, inside)
        return str(inside)

    def change(self, terms: AdmissionTerms) -> None:
        """From the next task on, the processes run on other terms."""
        self.rest()
        self.place = dataclasses.replace(self.place, terms=terms)

    def rest(self) -> None:
        """End the processes; the next task starts them again."""
        self._end(self._worker)
        self._end(self._gate)

    def stop(self) -> None:
        """End the processes for good, whatever they do. For other threads."""
        self._stopped.set()
        with self._lock:
            for each in (self._worker, self._gate):
                if each is not None:
                    each.kill()

    def _ready(self) -> WorkerProcess:
        if self._worker is None or not self._worker.alive:
            self._end(self._worker)
            self._worker, _ = self._started(gate=False)
        return self._worker

    def _started(self, *, gate: bool, data: bool = False) -> tuple[WorkerProcess, DataDescription]:
        """A process that is ready. A worker sees the data; a gate only if it is to describe them."""
        place = self.place
        folder = place.folder.gate if gate else place.folder.work
        with self._lock:
            self._check_stopped()
            process = WorkerProcess(
                folder=folder,
                log=place.folder.path / ("output_filter.log" if gate else "worker.log"),
                limits=place.limits,
                sandbox=None if gate else place.sandbox(),
                worker=place.screen if gate else place.worker,
            )
            if gate:
                self._gate = process
            else:
                self._worker = process
        process.send(place.preparation(folder, self._clients_from, gate=gate, data=data or not gate))
        while True:
            message = self._heard(process)
            if isinstance(message, JobReady):
                return process, message.data
            if isinstance(message, CannotRunJob):
                self._end(process)
                raise CannotRunJobError(message.reason)

    def _answers(
        self, worker: WorkerProcess, waiting: set[int], cancelled: Callable[[], bool], certify: SigningCallback
    ) -> Iterator[TaskResult]:
        since: float | None = None
        while waiting:
            message = self._heard(worker)
            if isinstance(message, TaskResult) and message.answer.client in waiting:
                waiting.discard(message.answer.client)
                yield message
            elif isinstance(message, SignRequest | ReleaseRequest | ReleaseNoteRequest):
                worker.send(certify(message))
            elif isinstance(message, CannotRunJob):
                raise CannotRunJobError(message.reason)
            if cancelled():
                since = since or time.monotonic()
                if time.monotonic() - since > CANCEL_GRACE_SECONDS:
                    worker.kill()
                    return

    def _heard(self, process: WorkerProcess) -> FromWorker | None:
        """The next message, or None after a short while. A line for the site's log is logged."""
        try:
            message = process.receive()
        except WorkerExitedError:
            self._check_stopped()
            raise
        if isinstance(message, WorkerLogLine):
            self._log(message.line)
            return None
        return message

    def _log(self, line: str) -> None:
        """Write a line to the site's log. A job's process may send any number of them, and nobody else sees them."""
        self._logged += 1
        if self._logged <= MAX_LINES_PER_TASK:
            log.warning("job %s: %s", self.place.job, one_line(line[:MAX_LINE_LENGTH]))
        elif self._logged == MAX_LINES_PER_TASK + 1:
            log.warning(
                "job %s: more than %d log lines in one task; dropped the rest", self.place.job, MAX_LINES_PER_TASK
            )

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise JobStoppedError(f"job {self.place.job} is being stopped")

    @staticmethod
    def _end(process: WorkerProcess | None) -> None:
        if process is not None:
            process.close()
