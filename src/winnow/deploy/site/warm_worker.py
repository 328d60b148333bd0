"""A process that has loaded what questions need before one comes: loading takes most of the time until a site accepts.

It holds no torch, and exists only at sites that have tables.
"""

import select
import socket
from threading import Lock, Timer

from winnow.deploy.sandbox.child_entry_point import LaunchSpec
from winnow.deploy.sandbox.job_process import IdleProcess, Process

PRELOADED_MODULES = (
    "winnow.deploy.jobs.run_bundle",
    "winnow.deploy.jobs.party_data",
    "winnow.deploy.jobs.site_analysis",
    "winnow.experiment.run_workflow",
    "winnow.analytics.stats.noiseless_program",
    "winnow.analytics.stats.noisy_program",
    "winnow.analytics.sql.exact_query",
    "winnow.analytics.sql.noisy_query",
    "winnow.analytics.sql.plan_query",
    "winnow.privacy.shares.secure_comparison",
)
"""What the worker of a question imports; some 160 MB."""
RESTOCK_SECONDS = 2.0
"""Seconds between the use of the process and the start of the next: the question that took it goes first."""


class WarmWorker:
    """Holds one preloaded process after `preload`; until that has loaded, new processes are used. For any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._idle: IdleProcess | None = None
        self._next: Timer | None = None
        self._closed = False

    def preload(self) -> None:
        with self._lock:
            if not self._closed and self._idle is None:
                self._idle = IdleProcess(*PRELOADED_MODULES)

    @property
    def ready(self) -> bool:
        """Whether the process has loaded everything, or died."""
        return self._idle is not None and bool(select.select([self._idle.output], [], [], 0)[0])

    def launch(self, spec: LaunchSpec) -> tuple[Process, socket.socket]:
        return self._take().launch(spec)

    def _take(self) -> IdleProcess:
        with self._lock:
            idle = self._idle
            if idle is None or self._closed or not self.ready:
                return IdleProcess()
            self._idle = None
            self._next = Timer(RESTOCK_SECONDS, self.preload)
            self._next.daemon = True
            self._next.start()
        if idle.process.poll() is None:
            return idle
        idle.close()
        return IdleProcess()

    def close(self) -> None:
        """End the preloaded process. May be called twice."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, None
        if self._next is not None:
            self._next.cancel()
            self._next.join()
        if idle is not None:
            idle.close()
