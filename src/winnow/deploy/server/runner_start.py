"""How the process of a job starts at the server: its folder, its files, its limits and its sandbox."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from winnow.core import WinnowError
from winnow.deploy.jobs.bundle_format import Bundle, read_bundle
from winnow.deploy.jobs.ipc_messages import JobSite, StartJob
from winnow.deploy.sandbox.isolation import MB, ProcessLimits, Sandbox, sandbox_unavailable_reason
from winnow.deploy.server.leader_context import LeaderContext
from winnow.deploy.server.runner_process_handle import RUNNER_LOG, RunnerProcess
from winnow.deploy.server.stored_record_integrity import verified_chunks
from winnow.deploy.wire.messages import Blob

OPEN_FILES = 1 << 16
"""Each reply that waits to be aggregated is one."""
UNLIMITED_DISK_MB = 1 << 40
"""More than there is."""


class RunnerError(WinnowError):
    """A runner asked for something that it may not have."""


class SandboxUnavailableError(WinnowError):
    """A job brings its own code, and this server cannot isolate it."""


@dataclass(frozen=True, kw_only=True)
class RunnerStart:
    """What a runner is started with."""

    message: StartJob
    limits: ProcessLimits
    sandbox: Sandbox | None

    def start(self, context: LeaderContext) -> RunnerProcess:
        process = RunnerProcess(
            Path(self.message.folder),
            context.jobs / self.message.job / RUNNER_LOG,
            limits=self.limits,
            sandbox=self.sandbox,
            program=context.runner,
            launch=context.warm_runner.launch,
        )
        process.send(self.message)
        return process


def prepare_start(
    context: LeaderContext, job: str, bundle: Blob, members: Sequence[JobSite], *, number: int
) -> RunnerStart:
    """Start number `number` of a job, after its last committed round; for a thread.

    Each start has a new folder: a process that is still ending must not write into the next one's.
    """
    folder = _make_folder(context, job, number)
    last = context.queries.last_round(job)
    finished = 0 if last is None else last.number
    checkpoint = None if last is None else last.checkpoint

    def copy(blob: Blob, name: str) -> Path:
        path, what = folder / name, f"the {name} of job {job} after round {finished}"
        with path.open("wb") as file:
            for chunk in verified_chunks(context.blobs.read(job, blob), blob, what):
                file.write(chunk)
        return path

    context.queries.write_events(job, folder / "events.jsonl")
    path = copy(bundle, "bundle")
    content = read_bundle(path.read_bytes())
    message = StartJob(
        job=job,
        folder=str(folder),
        bundle=str(path),
        checkpoint=None if checkpoint is None else str(copy(checkpoint, "checkpoint")),
        round=finished,
        members=list(members),
        data={name: table for name, table in context.data.items() if name == content.data_name},
        events=str(folder / "events.jsonl"),
    )
    limits = runner_limits(content, context.memory_mb, context.disk_mb)
    return RunnerStart(message=message, limits=limits, sandbox=_sandbox(context, content, message))


def _make_folder(context: LeaderContext, job: str, number: int) -> Path:
    token = context.writes.fenced.token
    for old in (context.jobs / job).glob("run-*"):
        if int(old.name.split("-")[1]) <= token:  # else we were replaced and have yet to notice
            shutil.rmtree(old, ignore_errors=True)
    folder = context.jobs / job / f"run-{token}-{number}"
    (folder / "blobs").mkdir(parents=True)
    return folder


def _sandbox(context: LeaderContext, bundle: Bundle, message: StartJob) -> Sandbox | None:
    """The job's own code sees its folder, its replies and the data that it asks for."""
    if not bundle.own_code or context.unsandboxed:
        return None
    if reason := sandbox_unavailable_reason():
        raise SandboxUnavailableError(f"the job brings its own code, and this server cannot sandbox it: {reason}")
    named = [str(each) for table in message.data.values() for each in table.values() if isinstance(each, str)]
    job_folder = str(context.jobs / message.job)
    return Sandbox(read=[job_folder, *filter(os.path.isabs, named)], write=[message.folder])


def runner_limits(bundle: Bundle, memory_mb: int, disk_mb: int) -> ProcessLimits:
    """A job's own code has so much memory and disk and no GPU; other jobs have what the machine has."""
    cpus = sorted(os.sched_getaffinity(0))
    if bundle.own_code:
        return ProcessLimits(memory_mb=memory_mb, cpus=cpus, disk_mb=disk_mb)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return ProcessLimits(
        memory_mb=memory // MB, cpus=cpus, gpus=_gpus(), open_files=OPEN_FILES, disk_mb=UNLIMITED_DISK_MB
    )


def _gpus() -> list[int]:
    """Those that the server itself was given, by number."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        names = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    else:
        names = given.split(",")
    return sorted(int(name) for name in names if name.isdecimal())
