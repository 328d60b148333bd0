"""A task's answers: those that were made already are given again, the missing ones are made, once, and kept."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from winnow.core.errors import WinnowError
from winnow.deploy.jobs.ipc import RunTask, TaskResult
from winnow.deploy.site.context import SiteContext
from winnow.deploy.site.import_untrusted import import_file
from winnow.deploy.site.job_folder import result_file_name
from winnow.deploy.site.job_processes import JobProcesses, JobStoppedError
from winnow.deploy.site.peer_messages import PeerMessageCipher
from winnow.deploy.site.signing_proxy import SigningProxy
from winnow.deploy.site.state_store import StoredResult
from winnow.deploy.wire.atomic_files import blob_of
from winnow.deploy.wire.blob_folder import BlobFolder
from winnow.deploy.wire.errors import UnreachableError, one_line
from winnow.deploy.wire.messages import ClientResult, PeerSite, WireTask

log = logging.getLogger(__name__)

WORKING_STAGE = "working"
"""The stage of every failure of code behind a gate, whatever failed."""


class ResultDelivery:
    """Of one job. A task among `cancelled` is not begun, and its answers are not given."""

    def __init__(
        self,
        office: SiteContext,
        job: str,
        labour: JobProcesses,
        notary: SigningProxy,
        spool: BlobFolder,
        cancelled: set[str],
    ) -> None:
        self._office, self._job, self._labour, self._notary, self._spool = office, job, labour, notary, spool
        self._cancelled = cancelled
        self._folder = office.folder(job)
        self._post = PeerMessageCipher(office.kit, job, ())
        self._used: dict[str, int] = {}
        """The last round that needed a blob of the spool."""

    def know(self, neighbours: Sequence[PeerSite]) -> None:
        """Where the job's clients are."""
        self._notary.know(neighbours)
        believed = self._notary.neighbours
        self._post = PeerMessageCipher(self._office.kit, self._job, believed, lambda: self._notary.revocations)

    def give(self, task: WireTask) -> None:
        made = self._office.state.made(self._job, task.id)
        there = {client: each for client, each in made.items() if each.life in ("", self._labour.life)}
        for client in task.clients:
            if client in there:
                self._deliver(there[client])
        missing = [client for client in task.clients if client not in there]
        if missing:
            self._make(replace(task, clients=missing))

    def fail(self, task: WireTask, clients: Sequence[int], stage: str, reason: str) -> None:
        """Tell a failure that is not remembered: asked again, the site tries again."""
        log.warning("job %s, task %s: %s: %s", self._job, task.id[:12], stage, one_line(reason))
        for client in clients:
            failed = ClientResult(job=self._job, task=task.id, client=client, stage=stage, failure=one_line(reason))
            self._office.uplink.give(failed, None)

    def sweep(self, settled: int, bundle: str) -> None:
        """Delete files that nobody needs any more, the blobs of settled rounds among them, but not the bundle."""
        self._folder.sweep(self._office.state.files(self._job))
        for blob in self._spool.blobs():
            if blob.digest != bundle and self._used.get(blob.digest, -1) <= settled:
                self._spool.remove(blob)
                self._used.pop(blob.digest, None)

    def _make(self, task: WireTask) -> None:
        waiting = set(task.clients)
        with self._failing(task, waiting, "preparing"):
            order = self._order(task)
            certify = partial(self._notary.certify, task.round)
            for did in self._in_order(self._labour.do(order, lambda: task.id in self._cancelled, certify)):
                client = did.answer.client
                waiting.discard(client)
                if task.id in self._cancelled:
                    continue
                stage = WORKING_STAGE if self._labour.place.gated else "handing over"
                with self._failing(task, {client}, stage, self._labour.told):
                    made = self._accepted(order, did)
                    self._office.state.add(made)
                    if task.id in self._cancelled:  # meanwhile: if it was settled too, nobody else deletes this
                        self._office.state.drop(made)
                    else:
                        self._deliver(made)

    def _in_order(self, answers: Iterator[TaskResult]) -> Iterable[TaskResult]:
        """As they come; behind a gate all together, for the order in which they come could say anything."""
        return sorted(answers, key=lambda did: did.answer.client) if self._labour.place.gated else answers

    @contextmanager
    def _failing(
        self, task: WireTask, clients: set[int], stage: str, tell: Callable[[str], str] = str
    ) -> Iterator[None]:
        """What goes wrong is told as the failure of these clients, unless it is that nobody hears us."""
        try:
            yield
        except (JobStoppedError, UnreachableError):
            raise
        except (WinnowError, OSError) as error:
            self.fail(task, sorted(clients), stage, tell(str(error)))

    def _order(self, task: WireTask) -> RunTask:
        parts = {name: self._office.uplink.fetch(self._job, blob, self._spool) for name, blob in task.parts.items()}
        self._used.update({blob.digest: task.round for blob in task.parts.values()})
        kept = self._office.state.kept(self._job)
        return RunTask(
            task=replace(task, peer_messages=self._post.opened(task)),
            parts={name: str(path) for name, path in parts.items()},
            client_state={client: str(self._folder.kept / kept[client]) for client in task.clients if client in kept},
            parties=self._notary.signatories(task.round),
        )

    def _accepted(self, order: RunTask, did: TaskResult) -> StoredResult:
        """An answer in the agent's own words, its files where only the agent can change them."""
        task, client = order.task, did.answer.client
        did = self._screened(order, did)
        life = self._labour.life if did.volatile else ""
        if did.answer.failure is not None:
            return StoredResult(answer=self._failed(task, did), round=task.round, life=life)
        payload = self._taken(did.payload, self._folder.replies / result_file_name(task, client))
        keep = self._taken(did.new_client_state, self._folder.kept / result_file_name(task, client))
        return StoredResult(
            answer=ClientResult(
                job=self._job,
                task=task.id,
                client=client,
                seconds=did.answer.seconds,
                metrics=did.answer.metrics,
                peer_messages=self._post.sealed(task, client, did.answer.peer_messages),
                blob=None if payload is None else blob_of(self._folder.replies / payload),
            ),
            round=task.round,
            payload=payload,
            keep=keep,
            life=life,
        )

    def _failed(self, task: WireTask, did: TaskResult) -> ClientResult:
        """A failure as it may be told; of a stranger's code behind a gate, no more than that it failed."""
        failure = one_line(self._labour.told(did.answer.failure or ""))
        failed = ClientResult(
            job=self._job, task=task.id, client=did.answer.client, stage=WORKING_STAGE, failure=failure
        )
        if self._labour.place.gated:
            return failed
        return replace(failed, stage=did.answer.stage, seconds=did.answer.seconds)

    def _taken(self, claimed: str | None, target: Path) -> str | None:
        """Take a file from the process that answers come from; its new name."""
        if claimed is None:
            return None
        import_file(self._folder.gate if self._labour.place.gated else self._folder.work, claimed, target)
        return target.name

    def _screened(self, order: RunTask, did: TaskResult) -> TaskResult:
        """The answer behind the gate, where there is one. Letters would be a way around it.

        What the gate lets out holds for good: code that could have its answer made anew would get it under new noise.
        """
        if not self._labour.place.gated or did.answer.failure is not None:
            return did
        if did.answer.peer_messages:
            raise WinnowError("a job with code of its own may not write letters where a site forces filters on it")
        return self._labour.screen(order, did)

    def _deliver(self, made: StoredResult) -> None:
        self._office.uplink.give(made.answer, self._folder.replies / made.payload if made.payload else None)
