"""What a job's process says while it works, told to the server in batches."""

import logging
import time

from winnow.deploy.jobs.ipc import Measured, RunnerLogLine, WorkerLogLine
from winnow.deploy.site.uplink import Uplink
from winnow.deploy.wire.errors import one_line

log = logging.getLogger(__name__)

SEND_SECONDS = 1.0
MAX_LINES_PER_TASK = 1000
"""More than so many are dropped."""
MAX_LINE_LENGTH = 4096
"""The rest of a line is dropped: it would be cut further on, and until then it is held in memory."""


class WorkerLog:
    """`silent` keeps it all at the site: where filters are forced on a stranger's code, words would be a way around."""

    def __init__(self, uplink: Uplink, job: str) -> None:
        self.silent = True
        self._uplink, self._job = uplink, job
        self._lines: list[str] = []
        self._metrics: dict[str, float] = {}
        self._sent = 0.0
        self._heard = 0

    def hear(self, said: RunnerLogLine | Measured | WorkerLogLine) -> None:
        """What is noted is for the site's own log alone. A job's process may say anything, and as much as it likes."""
        self._heard += 1
        if self._heard > MAX_LINES_PER_TASK:
            if self._heard == MAX_LINES_PER_TASK + 1:
                log.warning(
                    "job %s: it said more than %d lines in one task; the rest is dropped", self._job, MAX_LINES_PER_TASK
                )
            return
        if isinstance(said, RunnerLogLine | WorkerLogLine):
            level = logging.INFO if isinstance(said, RunnerLogLine) else logging.WARNING
            log.log(level, "job %s: %s", self._job, one_line(said.line[:MAX_LINE_LENGTH]))
        if self.silent or isinstance(said, WorkerLogLine):
            return
        if isinstance(said, RunnerLogLine):
            self._lines.append(said.line[:MAX_LINE_LENGTH])
        else:
            self._metrics.update(said.metrics)
        if time.monotonic() - self._sent > SEND_SECONDS:
            self._send()

    def task_is_over(self) -> None:
        self._heard = 0
        if self._lines or self._metrics:
            self._send()

    def _send(self) -> None:
        self._uplink.report(self._job, self._lines, self._metrics)
        self._lines, self._metrics, self._sent = [], {}, time.monotonic()
