"""A process that has loaded torch before there is a job for it: loading takes most of the time in which a job moves to
a new leader.
"""

import asyncio
import logging
import os
import socket
from pathlib import Path

from winnow.deploy.sandbox.child_entry_point import LaunchSpec
from winnow.deploy.sandbox.forked_process_handle import FORK_SERVER_VARIABLE
from winnow.deploy.sandbox.job_process import IdleProcess, Process, fork_from

log = logging.getLogger(__name__)

PRELOADED_MODULES = (
    "winnow.deploy.jobs.server_training",
    "winnow.deploy.jobs.run_bundle",
    "winnow.experiment.run_workflow",
    "winnow.config.resolve",
    "winnow.experiment.run",
    "winnow.deploy.jobs.server_analysis",
    "winnow.analytics.sql.exact_query",
    "winnow.analytics.sql.plan_query",
)
"""What a runner without code of the job's own imports, as far as it is installed; some 300 MB."""
RESTOCK_SECONDS = 5.0
"""Seconds between the use of the preloaded process and the start of the next: the job that took it goes first."""


class WarmRunner:
    """Holds one preloaded process after `preload`; until that has loaded, new processes are used."""

    def __init__(self) -> None:
        self._idle: IdleProcess | None = None
        self._loaded = False
        self._next: asyncio.TimerHandle | None = None

    def preload(self, modules: tuple[str, ...] = PRELOADED_MODULES) -> None:
        self._modules = modules
        self._idle, self._loaded = IdleProcess(*modules), False
        asyncio.get_running_loop().add_reader(self._idle.output, self._on_loaded)

    def _on_loaded(self) -> None:
        """It has loaded, or died."""
        assert self._idle is not None
        asyncio.get_running_loop().remove_reader(self._idle.output)
        self._loaded = True
        if self._idle.output.read(1):
            log.info("process %d is preloaded for the next job", self._idle.process.pid)

    def launch(self, spec: LaunchSpec) -> tuple[Process, socket.socket]:
        """From the fork server of `winnow local`, where there is one: it has loaded torch, too."""
        fork_server = os.environ.get(FORK_SERVER_VARIABLE)
        return self.take().launch(spec) if fork_server is None else fork_from(Path(fork_server), spec)

    def take(self) -> IdleProcess:
        idle = self._idle
        if idle is None or not self._loaded:
            return IdleProcess()
        self._idle = None
        self._next = asyncio.get_running_loop().call_later(RESTOCK_SECONDS, self.preload, self._modules)
        if idle.process.poll() is None:
            return idle
        idle.close()
        return IdleProcess()

    def close(self) -> None:
        """End the preloaded process. May be called twice."""
        if self._next is not None:
            self._next.cancel()
        idle, self._idle = self._idle, None
        if idle is not None:
            asyncio.get_running_loop().remove_reader(idle.output)
            idle.close()
