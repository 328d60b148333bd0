"""Server and agents in one: starts the real processes of a job and carries messages between them, without a network."""

import os
import shutil
import threading
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from winnow.deploy.jobs.bundle_format import Bundle, read_bundle, write_bundle
from winnow.deploy.jobs.client_statement_signatures import statement_bytes, submission_id
from winnow.deploy.jobs.ipc_channel import Channel, ChannelClosedError, stop_process
from winnow.deploy.jobs.ipc_messages import (
    AssignClientNumbers,
    CannotRunJob,
    CommitRound,
    DispatchTask,
    FromRunner,
    FromWorker,
    JobFailed,
    JobFinished,
    JobReady,
    JobSite,
    PrepareJob,
    ReleaseRequest,
    ReleaseResponse,
    ResultArrived,
    RoundCommitted,
    RunnerLogLine,
    RunTask,
    SignRequest,
    SignResponse,
    SitePublicKey,
    StartJob,
    StopRunner,
    StopWorker,
    TaskResult,
    WithdrawTasks,
    WorkerLogLine,
)
from winnow.deploy.jobs.snapshot_file import load_snapshot
from winnow.deploy.sandbox.isolation import ProcessLimits
from winnow.deploy.sandbox.job_process import JobProcess, fork_from, start_new
from winnow.deploy.trust.signed_documents import ALGORITHM

EXIT_SECONDS = 30.0
"""Seconds that a process has to end by itself."""
HANG_SECONDS = 60.0
"""Seconds that a site has to do the tasks that it was given."""


def start(
    module: str,
    incoming: Any,
    folder: Path,
    fork_server: Path | None,
) -> tuple[JobProcess, Channel[Any]]:
    process = JobProcess(
        folder=folder,
        log=folder / f"{module}.log",
        limits=ProcessLimits(memory_mb=8_000, cpus=sorted(os.sched_getaffinity(0))),
        sandbox=None,
        program=f"winnow.deploy.jobs.{module}",
        launch=start_new if fork_server is None else partial(fork_from, fork_server),
    )
    return process, Channel(process.socket, incoming)


class SiteStub:
    """A site's agent without policy, disk or network: one worker, a key, replies and what clients keep in memory."""

    def __init__(
        self,
        name: str,
        bundle: Path,
        data: dict[str, Any],
        folder: Path,
        fork_server: Path | None,
    ) -> None:
        self.name, self.folder = name, folder
        folder.mkdir(parents=True)
        self.notes: list[str] = []
        self.process, self.channel = start("worker", FromWorker, folder, fork_server)
        try:
            prepare = PrepareJob(job="job", folder=str(folder), bundle=str(bundle), data=data)
            self.channel.send(prepare)
            self.ready = self.heard()
        except BaseException:
            self.close()
            raise
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.submission = submission_id(read_bundle(bundle.read_bytes()))
        self.site_keys: list[SitePublicKey] = []
        self.released: dict[tuple[int, str], list[int]] = defaultdict(list)
        self.kept: dict[int, str] = {}
        self.proposed: dict[tuple[str, int], str] = {}
        self.done: list[str] = []

    def heard(self, round: int = 0) -> Any:
        """What the worker says, notes for the site's own log apart; what it wants signed or noted is."""
        while isinstance(message := self.channel.receive(), WorkerLogLine | SignRequest | ReleaseRequest):
            if isinstance(message, WorkerLogLine):
                self.notes.append(message.line)
            elif isinstance(message, SignRequest):
                said = statement_bytes(self.submission, round, message.client, message.content)
                self.channel.send(SignResponse(signature=self.key.sign(said, ALGORITHM)))
            else:
                rounds = self.released[message.client, message.kind]
                first = round > max(rounds, default=0)
                rounds.append(round)
                self.channel.send(ReleaseResponse(times=len({*rounds}) if first else 0))
        return message

    def signatory(self, first_client: int) -> SitePublicKey:
        public = self.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        clients = len(self.ready.data.sizes)
        return SitePublicKey(site=self.name, first_client=first_client, client_count=clients, key=public)

    def settle(self, tasks: dict[str, list[int]]) -> None:
        for task, clients in tasks.items():
            for client in clients:
                if (task, client) in self.proposed:
                    self.kept[client] = self.proposed.pop((task, client))

    def do(self, dispatch: DispatchTask, blobs: Path) -> list[TaskResult]:
        task = dispatch.task
        parts = {part: str(blobs / blob.digest) for part, blob in task.parts.items()}
        kept = {client: self.kept[client] for client in task.clients if client in self.kept}
        self.channel.send(RunTask(task=task, parts=parts, client_state=kept, site_keys=self.site_keys))
        answers = [self.heard(task.round) for _ in task.clients]
        self.done.append(task.name)
        for did in answers:
            if did.new_client_state:
                self.proposed[task.id, did.result.client] = did.new_client_state
        return answers

    def close(self) -> None:
        stop_process(self.process, self.channel, StopWorker(), EXIT_SECONDS)


class Broker:
    """Runs a job from its start or its last committed round; `stop_after` halts the runner once a round stands.

    Without a fork server, processes start with nothing loaded.
    """

    def __init__(
        self,
        config: str,
        site_data: list[dict[str, Any]],
        server_data: dict[str, Any],
        folder: Path,
        *,
        fork_server: Path | None,
    ) -> None:
        self.folder, self.fork_server = folder, fork_server
        folder.mkdir(parents=True, exist_ok=True)
        self.bundle = folder / "bundle"
        self.bundle.write_bytes(write_bundle(Bundle(config=config)))
        self.server_data = server_data
        self.site_data = site_data
        self.checkpoint: Path | None = None
        self.round, self.lines = 0, list[str]()
        self.withdrawn: list[str] = []
        self.log: list[str] = []
        self.sites: list[SiteStub] = []

    def with_program(self, name: str, text: str, config: str) -> "Broker":
        self.bundle.write_bytes(write_bundle(Bundle(config=config, files={name: text.encode()}, main=name)))
        return self

    def open_sites(self) -> None:
        if self.sites:
            return
        for i, data in enumerate(self.site_data, start=1):
            folder = self.folder / f"site-{i}"
            site = SiteStub(f"site-{i}", self.bundle, data, folder, self.fork_server)
            self.sites.append(site)

    def _members(self) -> list[JobSite]:
        """The sites with their clients numbered, which they are told the first time."""
        members, first = [], 0
        for site in self.sites:
            assert isinstance(site.ready, JobReady)
            members.append(JobSite(site=site.name, first_client=first, data=site.ready.data))
            if not self.round:
                site.channel.send(AssignClientNumbers(first_client=first))
            first += len(site.ready.data.sizes)
        keys = [site.signatory(member.first_client) for site, member in zip(self.sites, members, strict=True)]
        for site in self.sites:
            site.site_keys = keys
        return members

    def run(self, stop_after: int | None = None) -> JobFinished | JobFailed | CannotRunJob | None:
        self.open_sites()
        for site in self.sites:
            if isinstance(site.ready, CannotRunJob):
                return site.ready
        members = self._members()
        job = self.folder / "runner"
        job.mkdir(exist_ok=True)
        events = self.folder / "events.jsonl"
        events.write_text("".join(f"{line}\n" for line in self.lines))
        runner, channel = start("runner", FromRunner, job, self.fork_server)
        queues = {site.name: _Queue(site, channel, job / "blobs") for site in self.sites}
        try:
            start_job = StartJob(
                job="job",
                folder=str(job),
                bundle=str(self.bundle),
                checkpoint=str(self.checkpoint) if self.checkpoint else None,
                round=self.round,
                members=members,
                data=self.server_data,
                events=str(events),
            )
            channel.send(start_job)
            while True:
                message = channel.receive()
                if isinstance(message, DispatchTask):
                    queues[message.site].put(message)
                elif isinstance(message, WithdrawTasks | RunnerLogLine):
                    self._note(message)
                elif isinstance(message, CommitRound):
                    self._commit(message)
                    if message.round == stop_after:
                        return None
                    channel.send(RoundCommitted(round=message.round))
                elif isinstance(message, JobFinished | JobFailed):
                    self.lines += message.lines if isinstance(message, JobFinished) else []
                    return message
        except ChannelClosedError:
            return None
        finally:
            for queue in queues.values():
                queue.close()
            if stop_after:
                runner.kill()
            stop_process(runner, channel, StopRunner(reason="the job has ended"), EXIT_SECONDS)

    def _note(self, message: WithdrawTasks | RunnerLogLine) -> None:
        if isinstance(message, WithdrawTasks):
            self.withdrawn += message.tasks
        else:
            self.log.append(message.line)

    def _commit(self, message: CommitRound) -> None:
        self.checkpoint = self.folder / f"committed-{message.round}"
        shutil.copy(message.checkpoint, self.checkpoint)
        self.round = message.round
        self.lines += message.lines
        for site in self.sites:
            site.settle(message.settled.get(site.name, {}))

    def final_values(self) -> dict[str, Any]:
        """Runs the job to its end; the values that the workflow left."""
        try:
            ended = self.run()
        finally:
            self.close()
        assert isinstance(ended, JobFinished), ended
        assert self.checkpoint is not None
        return dict(load_snapshot(self.checkpoint).values)

    def close(self) -> None:
        for site in self.sites:
            site.close()


class _Queue:
    """Does a site's tasks one after another, while others do theirs."""

    def __init__(self, site: SiteStub, runner: Channel[Any], blobs: Path) -> None:
        self._site, self._runner, self._blobs = site, runner, blobs
        self._tasks: list[DispatchTask | None] = []
        self._there = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._work, name=f"queue of {site.name}")
        self._thread.start()

    def put(self, dispatch: DispatchTask | None) -> None:
        self._tasks.append(dispatch)
        self._there.release()

    def close(self) -> None:
        """Return once the site has done its tasks. One that hangs is killed."""
        self.put(None)
        self._thread.join(HANG_SECONDS)
        if self._thread.is_alive():
            self._site.process.kill()
            self._thread.join()

    def _work(self) -> None:
        while True:
            self._there.acquire()
            dispatch = self._tasks.pop(0)
            if dispatch is None:
                return
            try:
                for did in self._site.do(dispatch, self._blobs):
                    self._runner.send(ResultArrived(result=did.result, path=did.payload))
            except (ChannelClosedError, FileNotFoundError):
                return
