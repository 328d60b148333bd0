"""A job's process at a site: a worker or an output filter, spoken to by one thread that waits for its replies."""

import os
import select
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from winnow.core.errors import WinnowError
from winnow.deploy.jobs.ipc_channel import Channel, ChannelClosedError, InvalidMessageError, stop_process
from winnow.deploy.jobs.ipc_messages import FromWorker, StopWorker, ToWorker
from winnow.deploy.sandbox.child_entry_point import LaunchSpec
from winnow.deploy.sandbox.forked_process_handle import FORK_SERVER_VARIABLE
from winnow.deploy.sandbox.isolation import ProcessLimits, Sandbox
from winnow.deploy.sandbox.job_process import JobProcess, Launch, Process, fork_from, start_new

EXIT_GRACE_SECONDS = 2.0
"""Seconds that a process has to end by itself."""
POLL_SECONDS = 0.5


class WorkerExitedError(WinnowError):
    """The job's process ended before it answered."""


class WorkerProcess:
    """`life` names this one run of the process: what holds only while it lives is marked with it."""

    def __init__(
        self,
        *,
        folder: Path,
        log: Path,
        limits: ProcessLimits,
        sandbox: Sandbox | None,
        program: str,
        launch: Launch | None = None,
    ) -> None:
        """`launch` starts the process; by default it is a new one, or one of the fork server's."""
        self.life = uuid4().hex
        self._process = JobProcess(
            folder=folder,
            log=log,
            limits=limits,
            sandbox=sandbox,
            program=program,
            launch=launch or _start_or_fork,
        )
        self._channel: Channel[Any] = Channel(self._process.socket, cast(Any, FromWorker))
        self._folder, self._disk_mb = folder, limits.disk_mb

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, message: ToWorker) -> None:
        try:
            self._channel.send(message)
        except ChannelClosedError as error:
            raise WorkerExitedError(self._exit_reason()) from error

    def receive(self, timeout: float = POLL_SECONDS) -> FromWorker | None:
        """The next message, or None if there is none yet."""
        try:
            if not select.select([self._channel], [], [], timeout)[0]:
                return None
            return cast(FromWorker, self._channel.receive())
        except InvalidMessageError as error:
            self.kill()
            raise WorkerExitedError("the job's process sent an invalid message") from error
        except (ChannelClosedError, ValueError, OSError) as error:
            raise WorkerExitedError(self._exit_reason()) from error

    def kill(self) -> None:
        """End it and whatever it started, now. May be called by any thread, and twice."""
        self._process.end()

    def close(self) -> None:
        """Let it end, or make it. May be called twice, and after it has exited.

        The files of a process that exceeded its disk quota are deleted.
        """
        stop_process(self._process, self._channel, StopWorker(), EXIT_GRACE_SECONDS)
        if self._process.exceeded_disk:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _exit_reason(self) -> str:
        """How it ended. It has closed the connection, so it ends soon or is made to."""
        code = None
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(EXIT_GRACE_SECONDS)
        self.kill()
        if self._process.exceeded_disk:
            return f"the job's process was stopped: it wrote more than {self._disk_mb} MB"
        if code is None:
            return "the job's process closed its connection"
        if code < 0:
            return f"the job's process was ended by {signal.Signals(-code).name}"
        return f"the job's process ended with status {code}"


def _start_or_fork(spec: LaunchSpec) -> tuple[Process, socket.socket]:
    server = os.environ.get(FORK_SERVER_VARIABLE)
    if server is None:
        return start_new(spec)
    try:
        return fork_from(Path(server), spec)
    except OSError as error:
        raise WorkerExitedError(f"the fork server does not respond: {error}") from error
