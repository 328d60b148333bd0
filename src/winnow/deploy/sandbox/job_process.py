"""The process of a job, seen from the server or the site agent that supervises it.

It is started behind its sandbox, connected by a socketpair, kept to its disk quota, and ended with all that it started.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec

from winnow.deploy.sandbox.child_entry_point import LaunchSpec
from winnow.deploy.sandbox.disk_quota import DiskQuotaMonitor
from winnow.deploy.sandbox.forked_process_handle import ForkedProcess
from winnow.deploy.sandbox.isolation import MB, ProcessLimits, Sandbox, environment

MAX_LOG_BYTES = 8 << 20
"""A log that is longer is set aside when the process starts again."""

Process: TypeAlias = "subprocess.Popen[bytes] | ForkedProcess"
Launch: TypeAlias = Callable[[LaunchSpec], tuple[Process, socket.socket]]
"""Starts a process; the process, and our end of the socketpair to it."""


class IdleProcess:
    """A process that waits for its `LaunchSpec`, and loads modules meanwhile.

    It sees nothing of our environment, which may hold the password of a database. `close` ends it, unless it was
    launched.
    """

    def __init__(self, *preloaded: str) -> None:
        self.socket, theirs = socket.socketpair()
        try:
            with theirs:
                self.process = _start_idle(theirs, preloaded)
        except BaseException:
            self.socket.close()
            raise
        assert self.process.stdout is not None
        self.output = self.process.stdout
        """Where it reports that the modules are loaded."""
        self._launched = False

    def launch(self, spec: LaunchSpec) -> tuple[Process, socket.socket]:
        """Let it do the work of a job. From here on the process and the socket are the caller's to close."""
        assert self.process.stdin is not None
        self.output.close()
        try:
            with suppress(BrokenPipeError), self.process.stdin as pipe:  # its first message shows that it is dead
                pipe.write(msgspec.json.encode(spec))
        except BaseException:
            self.close()
            raise
        self._launched = True
        return self.process, self.socket

    def close(self) -> None:
        """End the process and close the connections to it, unless it was launched. May be called twice."""
        if self._launched:
            return
        self.process.kill()
        self.process.wait()
        self.socket.close()
        self.output.close()
        if self.process.stdin is not None:
            self.process.stdin.close()


def _start_idle(channel: socket.socket, preloaded: Sequence[str]) -> "subprocess.Popen[bytes]":
    limits = ProcessLimits(memory_mb=0, cpus=sorted(os.sched_getaffinity(0)))
    descriptor = channel.fileno()
    return subprocess.Popen(  # noqa: S603
        [
            sys.executable,
            "-I",
            "-m",
            "winnow.deploy.sandbox.child_entry_point",
            str(descriptor),
            *preloaded,
        ],
        pass_fds=(descriptor,),
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(Path("/"), limits),
        start_new_session=True,
    )


def start_new(spec: LaunchSpec) -> tuple[Process, socket.socket]:
    return IdleProcess().launch(spec)


def fork_from(server: Path, spec: LaunchSpec) -> tuple[Process, socket.socket]:
    """A process forked by the fork server that listens at this path."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            return ForkedProcess(server, spec, theirs.fileno()), ours
    except BaseException:
        ours.close()
        raise


class JobProcess:
    """Started at once. `socket` is our end of the connection; the caller closes it."""

    def __init__(
        self,
        *,
        folder: Path,
        log: Path,
        limits: ProcessLimits,
        sandbox: Sandbox | None,
        program: str,
        launch: Launch,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        _rotate(log)
        spec = LaunchSpec(
            limits=limits,
            sandbox=sandbox,
            program=program,
            folder=str(folder),
            log=str(log),
            environment=environment(folder, limits, shared_cache=sandbox is None),
        )
        self._ended = False
        self._process, self.socket = launch(spec)
        try:
            self._quota = DiskQuotaMonitor(
                self._process,
                [folder, log],
                limits.disk_mb * MB,
                self.kill,
            )
            self._quota.start()
        except BaseException:
            self.kill()
            self._process.wait()
            self.socket.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exceeded_disk(self) -> bool:
        """Whether it was ended because of what it wrote."""
        return self._quota.exceeded

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status; subprocess.TimeoutExpired if it runs on."""
        return self._process.wait(timeout)

    def kill(self) -> None:
        """End it and all that it started. May be called by any thread, and twice."""
        if self._ended:  # its number may be another process's by now
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self._process.kill()

    def end(self) -> int:
        """Kill it, wait for it, and return its exit status. May be called by any thread, and twice."""
        self.kill()
        self._quota.stop()
        status = self.wait()
        self._ended = True
        return status


def _rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
        log.replace(log.with_name(log.name + ".old"))
