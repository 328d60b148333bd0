"""Processes before they are a job's: each waits to be told what to be. A spare one has loaded torch meanwhile, which is
most of the time that a job takes to go on under a new leader.
"""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from winnow.deploy.sandbox.isolation import ProcessLimits, environment
from winnow.deploy.sandbox.launch import LaunchSpec

log = logging.getLogger(__name__)

PRELOADED_MODULES = (
    "winnow.deploy.jobs.server_training",
    "winnow.deploy.jobs.bootstrap",
    "winnow.experiment.run_workflow",
    "winnow.config.resolve",
    "winnow.experiment.run",
)
"""What a runner of Winnow's own imports; some 250 MB."""
RESTOCK_SECONDS = 5.0
"""Seconds after the spare process was used until a new one is started: the job that took it goes first."""


class IdleRunner:
    """A process that waits to be told what to be. It sees nothing of the server's environment, which may hold its
    database's password.
    """

    def __init__(self, *preloaded: str) -> None:
        limits = ProcessLimits(memory_mb=0, cpus=sorted(os.sched_getaffinity(0)))
        self.line, theirs = socket.socketpair()
        with theirs:
            self.channel = theirs.fileno()
            """The number of its end of the line."""
            self.process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", "-m", "winnow.deploy.sandbox.launch", *preloaded],
                pass_fds=(self.channel,),
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment(Path("/"), limits),
                start_new_session=True,
            )
        assert self.process.stdout is not None
        self.output = self.process.stdout
        """Where it says that it has loaded what it was to load."""

    def instruct(self, launch: LaunchSpec) -> None:
        assert self.process.stdin is not None
        self.output.close()
        with contextlib.suppress(BrokenPipeError), self.process.stdin as line:  # one that is dead is noticed later
            line.write(msgspec.json.encode(launch))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for end in (self.line, self.process.stdin, self.output):
            if end is not None:
                end.close()


class WarmRunner:
    """Keeps one process in reserve once it is told to; where that has not loaded yet, a fresh one is given."""

    def __init__(self) -> None:
        self._kept: IdleRunner | None = None
        self._loaded = False
        self._next: asyncio.TimerHandle | None = None

    def keep(self, preloaded: tuple[str, ...] = PRELOADED_MODULES) -> None:
        self._preloaded = preloaded
        self._kept, self._loaded = IdleRunner(*preloaded), False
        asyncio.get_running_loop().add_reader(self._kept.output, self._hear)

    def _hear(self) -> None:
        """It has loaded, or died."""
        assert self._kept is not None
        asyncio.get_running_loop().remove_reader(self._kept.output)
        self._loaded = True
        if self._kept.output.read(1):
            log.info("process %d is in reserve for the next job", self._kept.process.pid)

    def take(self) -> IdleRunner:
        kept = self._kept
        if kept is None or not self._loaded:
            return IdleRunner()
        self._kept = None
        self._next = asyncio.get_running_loop().call_later(RESTOCK_SECONDS, self.keep, self._preloaded)
        if kept.process.poll() is None:
            return kept
        kept.end()
        return IdleRunner()

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
        if self._kept is not None:
            asyncio.get_running_loop().remove_reader(self._kept.output)
            self._kept.end()
