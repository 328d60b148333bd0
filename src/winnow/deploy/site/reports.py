"""What a job's process says while it works, told to the server in batches."""

import logging
import time

from winnow.deploy.site.uplink import Uplink
from winnow.deploy.wire.errors import one_line
from winnow.deploy.work.orders import Measured, Said

log = logging.getLogger(__name__)

SECONDS = 1.0
LINES_A_TASK = 1000
"""More than so many are dropped."""


class Reports:
    """`silent` keeps it all at the site: where filters are forced on a stranger's code, words would be a way around."""

    def __init__(self, uplink: Uplink, job: str) -> None:
        self.silent = True
        self._uplink, self._job = uplink, job
        self._lines: list[str] = []
        self._metrics: dict[str, float] = {}
        self._sent = 0.0
        self._heard = 0

    def hear(self, said: Said | Measured) -> None:
        self._heard += 1
        if self._heard > LINES_A_TASK:
            return
        if isinstance(said, Said):
            log.info("job %s: %s", self._job, one_line(said.line))
        if self.silent:
            return
        if isinstance(said, Said):
            self._lines.append(said.line)
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
