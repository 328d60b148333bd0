"""Results of a job's tasks: each is made once, stored, and sent whenever the server asks for it."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from winnow.core.errors import WinnowError
from winnow.deploy.jobs.ipc_messages import RunTask, TaskResult
from winnow.deploy.site.job_folder import result_file_name
from winnow.deploy.site.job_processes import JobProcesses, JobStoppedError
from winnow.deploy.site.peer_encryption import PeerMessageCipher
from winnow.deploy.site.shared_job_context import SiteContext
from winnow.deploy.site.signing_proxy import SigningProxy
from winnow.deploy.site.state_store import StoredResult
from winnow.deploy.site.symlink_safe_move import import_file
from winnow.deploy.wire.atomic_files import blob_of
from winnow.deploy.wire.errors import UnreachableError, one_line
from winnow.deploy.wire.messages import ClientResult, PeerSite, WireTask
from winnow.deploy.wire.resumable_blob_files import BlobFolder

log = logging.getLogger(__name__)

WORKING_STAGE = "working"
"""The stage of every failure of code behind an output filter, whatever failed."""


class ResultDelivery:
    """Of one job. A task among `cancelled` is not started, and its results are not sent."""

    def __init__(
        self,
        context: SiteContext,
        job: str,
        processes: JobProcesses,
        proxy: SigningProxy,
        spool: BlobFolder,
        cancelled: set[str],
    ) -> None:
        self._context, self._job, self._processes, self._proxy, self._spool = context, job, processes, proxy, spool
        self._cancelled = cancelled
        self._folder = context.folder(job)
        self._cipher = PeerMessageCipher(context.kit, job, ())
        self._used: dict[str, int] = {}
        """The last round that needed a blob of the spool."""

    def set_peer_sites(self, peer_sites: Sequence[PeerSite]) -> None:
        """The server's list of the job's sites."""
        self._proxy.set_peer_sites(peer_sites)
        checked = self._proxy.peer_sites
        self._cipher = PeerMessageCipher(self._context.kit, self._job, checked, lambda: self._proxy.revocations)

    def deliver(self, task: WireTask) -> None:
        """Send the results that are stored; run the task for the other clients."""
        stored = self._context.state.results(self._job, task.id)
        usable = {client: each for client, each in stored.items() if self._is_usable(each)}
        for client in task.clients:
            if client in usable:
                self._submit(usable[client])
        missing = [client for client in task.clients if client not in usable]
        if missing:
            self._run(replace(task, clients=missing))

    def delete_unneeded_files(self, settled: int, bundle: str) -> None:
        """Also the blobs of rounds up to `settled`, but not the bundle."""
        self._folder.delete_unneeded(self._context.state.files(self._job))
        for blob in self._spool.blobs():
            if blob.digest != bundle and self._used.get(blob.digest, -1) <= settled:
                self._spool.remove(blob)
                self._used.pop(blob.digest, None)

    def _is_usable(self, result: StoredResult) -> bool:
        return result.worker_id in ("", self._processes.worker_id)

    def _run(self, task: WireTask) -> None:
        waiting = set(task.clients)
        with self._reporting_failure(task, waiting, "preparing"):
            run = self._run_task_message(task)
            sign = partial(self._proxy.handle_request, task.round)
            results = self._processes.run_task(run, lambda: task.id in self._cancelled, sign)
            for task_result in self._in_safe_order(results):
                client = task_result.result.client
                waiting.discard(client)
                if task.id in self._cancelled:
                    continue
                stage = WORKING_STAGE if self._processes.spec.filters_output else "handing over"
                with self._reporting_failure(task, {client}, stage, self._processes.redact_failure):
                    stored = self._import_result(run, task_result)
                    self._context.state.add_result(stored)
                    if task.id in self._cancelled:  # meanwhile: if it was settled too, nobody else deletes this
                        self._context.state.delete_result(stored)
                    else:
                        self._submit(stored)

    def _in_safe_order(self, results: Iterator[TaskResult]) -> Iterable[TaskResult]:
        """As they come; behind an output filter all together, as the order in which they come could be a message."""
        if not self._processes.spec.filters_output:
            return results
        return sorted(results, key=lambda each: each.result.client)

    @contextmanager
    def _reporting_failure(
        self, task: WireTask, clients: set[int], stage: str, redact: Callable[[str], str] = str
    ) -> Iterator[None]:
        """Report an error as the failure of these clients, unless the server is unreachable. It is not stored: asked
        again, the site tries again.
        """
        try:
            yield
        except (JobStoppedError, UnreachableError):
            raise
        except (WinnowError, OSError) as error:
            reason = one_line(redact(str(error)))
            log.warning("job %s, task %s failed (%s): %s", self._job, task.id[:12], stage, reason)
            for client in sorted(clients):
                self._context.uplink.submit_result(
                    ClientResult(job=self._job, task=task.id, client=client, stage=stage, failure=reason)
                )

    def _run_task_message(self, task: WireTask) -> RunTask:
        parts = {name: self._context.uplink.fetch(self._job, blob, self._spool) for name, blob in task.parts.items()}
        self._used.update({blob.digest: task.round for blob in task.parts.values()})
        state = self._context.state.client_state_files(self._job)
        return RunTask(
            task=replace(task, peer_messages=self._cipher.decrypt(task)),
            parts={name: str(path) for name, path in parts.items()},
            client_state={
                client: str(self._folder.client_state / state[client]) for client in task.clients if client in state
            },
            site_keys=self._proxy.site_public_keys(task.round),
        )

    def _import_result(self, run: RunTask, task_result: TaskResult) -> StoredResult:
        """A result in the agent's own words, its files where only the agent can change them."""
        task, client = run.task, task_result.result.client
        if task_result.result.failure is None:
            self._proxy.check_booked(task.name)
        if self._processes.spec.filters_output and task_result.result.failure is None:
            task_result = self._filtered(run, task_result)
        result = task_result.result
        worker_id = self._processes.worker_id if task_result.volatile else ""
        if result.failure is not None:
            return StoredResult(result=self._failed(task, result), round=task.round, worker_id=worker_id)
        payload = self._import_file(task_result.payload, self._folder.replies / result_file_name(task, client))
        state = self._import_file(
            task_result.new_client_state, self._folder.client_state / result_file_name(task, client)
        )
        return StoredResult(
            result=ClientResult(
                job=self._job,
                task=task.id,
                client=client,
                seconds=result.seconds,
                metrics=result.metrics,
                peer_messages=self._cipher.encrypt(task, client, result.peer_messages),
                blob=None if payload is None else blob_of(self._folder.replies / payload),
            ),
            round=task.round,
            payload=payload,
            new_client_state=state,
            worker_id=worker_id,
        )

    def _failed(self, task: WireTask, result: ClientResult) -> ClientResult:
        """A failure as others may know it; behind an output filter, no more than that the code failed."""
        failure = one_line(self._processes.redact_failure(result.failure or ""))
        failed = ClientResult(job=self._job, task=task.id, client=result.client, stage=WORKING_STAGE, failure=failure)
        if self._processes.spec.filters_output:
            return failed
        return replace(failed, stage=result.stage, seconds=result.seconds)

    def _import_file(self, claimed: str | None, target: Path) -> str | None:
        """Move a file from the process that results come from; its new name."""
        if claimed is None:
            return None
        filtered = self._processes.spec.filters_output
        import_file(self._folder.output_filter if filtered else self._folder.work, claimed, target)
        return target.name

    def _filtered(self, run: RunTask, task_result: TaskResult) -> TaskResult:
        """The result as the output filter lets it out. Messages to other clients would be a way around it.

        A filtered result is stored for good: code that could have its result made again would get it under new noise.
        """
        if task_result.result.peer_messages:
            raise WinnowError(
                "a job with its own code cannot send messages between clients at a site with mandatory filters"
            )
        return self._processes.filter_result(run, task_result)

    def _submit(self, stored: StoredResult) -> None:
        payload = self._folder.replies / stored.payload if stored.payload else None
        self._context.uplink.submit_result(stored.result, payload)
