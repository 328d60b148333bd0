"""The log lines of jobs on their way into the database: collected for a moment, then written together."""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Protocol

from sqlalchemy.exc import DataError

from winnow.deploy.server.audit_throttle import AuditThrottle
from winnow.deploy.server.database_writes import SERVER_SOURCE, LeaderWrites, NewLogLine
from winnow.deploy.server.sanitise_text import printable_line
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.errors import one_line
from winnow.deploy.wire.messages import LOG_KIND, AbsentSite

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.3
"""Seconds between two writes."""
MAX_METRICS = 100
"""Metrics that one source may have."""
MAX_METRIC_NAME = 100


class AuditWriter(Protocol):
    """Appends to the audit log; blocking."""

    def __call__(self, peer: Peer | None, what: str, target: str, outcome: str) -> None:
        """`peer` is None for what the server does by itself."""


class JobLogs:
    """`max_lines` is how many lines a job's own code may add to its log."""

    def __init__(self, writes: LeaderWrites, audit: AuditWriter, *, max_lines: int) -> None:
        self._writes = writes
        self._audit = audit
        self._max_lines = max_lines
        self._throttle = AuditThrottle()
        self._counts: Counter[str] = Counter()
        """By job, the lines of its own code."""
        self._buffer: dict[str, list[NewLogLine]] = defaultdict(list)
        self._exclusions: dict[str, dict[str, AbsentSite | None]] = defaultdict(dict)
        self._changed: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def add_server_line(self, job: str, text: str, kind: str = LOG_KIND) -> None:
        self._buffer[job].append(NewLogLine(source=SERVER_SOURCE, kind=kind, text=text))

    def add_untrusted(self, job: str, text: str) -> None:
        """A line of the job's own code, which may print too much."""
        self._counts[job] += 1
        if self._counts[job] <= self._max_lines:
            self.add_server_line(job, printable_line(text))
        elif self._counts[job] == self._max_lines + 1:
            limit = f"the job reached the limit of {self._max_lines} log lines; further lines are dropped"
            self.add_server_line(job, limit)

    def record_exclusion(self, job: str, exclusion: AbsentSite | str) -> None:
        """A site is excluded from a job, or (its name alone) no longer is."""
        if isinstance(exclusion, AbsentSite):
            self._exclusions[job][exclusion.site] = exclusion
        else:
            self._exclusions[job][exclusion] = None

    async def audit(self, peer: Peer | None, what: str, target: str, outcome: str) -> None:
        await asyncio.to_thread(self._audit, peer, what, target, outcome)

    async def audit_request(self, peer: Peer, what: str, target: str, outcome: str) -> None:
        """A request, and whether it was granted. Requests that are repeated too often are only counted."""
        if not self._throttle.suppresses(peer, what, target, outcome):
            await self.audit(peer, what, target, outcome)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()
            await self.audit_suppressed()

    async def audit_suppressed(self, *, all: bool = False) -> None:
        """Write how many requests were only counted, once their window has passed."""
        for peer, what, outcome in self._throttle.suppressed(all=all):
            await self.audit(peer, what, "", outcome)

    async def flush(self) -> None:
        """Write what is collected. Lines of one job stay in order."""
        exclusions, self._exclusions = self._exclusions, defaultdict(dict)
        for job, changes in exclusions.items():
            await asyncio.to_thread(self._writes.record_exclusions, job, changes)
        buffer, self._buffer = self._buffer, defaultdict(list)
        for job, lines in buffer.items():
            try:
                await asyncio.to_thread(self._writes.append, job, lines)
            except DataError as error:
                log.error("job %s: the database rejected log lines, which are dropped: %s", job, one_line(error.orig))
            self.notify(job)

    def notify(self, job: str) -> None:
        """Something about the job has changed."""
        self._changed.pop(job, asyncio.Event()).set()

    async def wait_for_change(self, job: str, seconds: float) -> None:
        """Until something about the job changes, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed[job].wait()
        except TimeoutError:
            return

    def forget(self, job: str) -> None:
        self._counts.pop(job, None)
        self.notify(job)


def bounded_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """As many of the metrics as one source may have."""
    short = [name for name in metrics if len(name) <= MAX_METRIC_NAME]
    return {name: metrics[name] for name in short[:MAX_METRICS]}
