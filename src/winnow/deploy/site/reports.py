"""What a job's process says while it works, told to the server in batches."""

import logging
import time

from winnow.deploy.site.uplink import Uplink
from winnow.deploy.wire.errors import one_line
from winnow.deploy.work.orders import Measured, Noted, Said

log = logging.getLogger(__name__)

SECONDS = 1.0
LINES_A_TASK = 1000
"""More than so many are dropped."""
LETTERS_A_LINE = 4096
"""The rest of a line is dropped: it would be cut further on, and until then it is held in memory."""


class Reports:
    """`silent` keeps it all at the site: where filters are forced on a stranger's code, words would be a way around."""

    def __init__(self, uplink: Uplink, job: str) -> None:
        self.silent = True
        self._uplink, self._job = uplink, job
        self._lines: list[str] = []
        self._metrics: dict[str, float] = {}
        self._sent = 0.0
        self._heard = 0

    def hear(self, said: Said | Measured | Noted) -> None:
        """What is noted is for the site's own log alone. A job's process may say anything, and as much as it likes."""
        self._heard += 1
        if self._heard > LINES_A_TASK:
            if self._heard == LINES_A_TASK + 1:
                log.warning(
                    "job %s: it said more than %d lines in one task; the rest is dropped", self._job, LINES_A_TASK
                )
            return
        if isinstance(said, Said | Noted):
            level = logging.INFO if isinstance(said, Said) else logging.WARNING
            log.log(level, "job %s: %s", self._job, one_line(said.line[:LETTERS_A_LINE]))
        if self.silent or isinstance(said, Noted):
            return
        if isinstance(said, Said):
            self._lines.append(said.line[:LETTERS_A_LINE])
        else:
            self._metrics.update(said.metrics)
        if time.monotonic() - self._sent > SECONDS:
            self._send()

    def task_is_over(self) -> None:
        self._heard = 0
        if self._lines or self._metrics:
            self._send()

    def _send(self) -> None:
        self._uplink.report(self._job, self._lines, self._metrics)
        self._lines, self._metrics, self._sent = [], {}, time.monotonic()
