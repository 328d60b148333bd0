"""A job's process: started behind its walls, spoken to over one line, ended with all it started."""

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from winnow.core.errors import WinnowError
from winnow.deploy.jobs.ipc import FromWorker, StopWorker, ToWorker
from winnow.deploy.jobs.ipc_channel import Channel, ChannelClosedError, InvalidMessageError
from winnow.deploy.sandbox.disk_quota import DiskQuotaMonitor
from winnow.deploy.sandbox.forked_process import FORK_SERVER_VARIABLE, ForkedProcess
from winnow.deploy.sandbox.isolation import MB, ProcessLimits, Sandbox, environment
from winnow.deploy.sandbox.launch import WORKER_MODULE, LaunchEnvironment, LaunchSpec

EXIT_GRACE_SECONDS = 2.0
"""Seconds that a process has to leave by itself."""
POLL_SECONDS = 0.5
MAX_LOG_BYTES = 8 << 20
"""What a process has said on its standard output is cut to this when it starts again."""


class WorkerExitedError(WinnowError):
    """The job's process ended before it answered."""


class WorkerProcess:
    """`life` names this one run of the process: what holds only while it lives is marked with it."""

    def __init__(
        self, *, folder: Path, log: Path, limits: ProcessLimits, sandbox: Sandbox | None, worker: str = WORKER_MODULE
    ) -> None:
        self.life = uuid4().hex
        ours, theirs = socket.socketpair()
        self._channel: Channel[Any] = Channel(ours, cast(Any, FromWorker))
        folder.mkdir(parents=True, exist_ok=True)
        launch = LaunchSpec(channel=theirs.fileno(), limits=limits, sandbox=sandbox, worker=worker)
        place = LaunchEnvironment(folder=str(folder), log=str(log), environment=environment(folder, limits))
        self._process: subprocess.Popen[bytes] | ForkedProcess
        try:
            with theirs, _log(log) as output:
                if FORK_SERVER_VARIABLE in os.environ:
                    self._process = _forked(os.environ[FORK_SERVER_VARIABLE], replace(launch, place=place))
                else:
                    self._process = _started(launch, place, output)
        except BaseException:
            self._channel.close()
            raise
        self._folder, self._disk_mb = folder, limits.disk_mb
        as_started: Any = self._process  # the watch needs what both kinds have
        self._watch = DiskQuotaMonitor(as_started, [folder, log], limits.disk_mb * MB, self.kill)
        self._watch.start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, message: ToWorker) -> None:
        try:
            self._channel.send(message)
        except ChannelClosedError as error:
            raise WorkerExitedError(self._end()) from error

    def receive(self, timeout: float = POLL_SECONDS) -> FromWorker | None:
        """The next message, or None if there is none yet."""
        try:
            if not select.select([self._channel], [], [], timeout)[0]:
                return None
            return cast(FromWorker, self._channel.receive())
        except InvalidMessageError as error:
            self.kill()
            raise WorkerExitedError("the job's process said something that is no message") from error
        except (ChannelClosedError, ValueError, OSError) as error:
            raise WorkerExitedError(self._end()) from error

    def kill(self) -> None:
        """End it and whatever it started, now. May be called by any thread, and twice."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Let it leave, or make it. What it wrote beyond all measure is deleted."""
        try:
            self._channel.send(StopWorker())
            self._process.wait(EXIT_GRACE_SECONDS)
        except (ChannelClosedError, subprocess.TimeoutExpired):
            pass
        self.kill()
        self._watch.stop()
        self._channel.close()
        if self._watch.exceeded:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self) -> str:
        """How it ended; it has hung up, so it ends soon or is made to."""
        until = time.monotonic() + EXIT_GRACE_SECONDS
        while self._process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        code = self._process.poll()
        self.kill()
        if self._watch.exceeded:
            return f"the job's process was ended: it wrote more than {self._disk_mb} MB"
        if code is None:
            return "the job's process hung up"
        if code < 0:
            return f"the job's process was ended by {signal.Signals(-code).name}"
        return f"the job's process ended with status {code}"


def _forked(preloaded: str, launch: LaunchSpec) -> ForkedProcess:
    try:
        return ForkedProcess(Path(preloaded), launch)
    except (OSError, msgspec.MsgspecError) as error:
        raise WorkerExitedError(f"the process that forks workers does not answer: {error}") from error


def _started(launch: LaunchSpec, place: LaunchEnvironment, output: IO[bytes]) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-I", "-m", "winnow.deploy.sandbox.launch"],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        cwd=place.folder,
        env=place.environment,
        pass_fds=(launch.channel,),
        start_new_session=True,
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as line:  # it is dead already, which the first message will show
        line.write(msgspec.json.encode(launch))
    return process


def _log(path: Path) -> Any:
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_name(path.name + ".old"))
    return path.open("ab")
