"""What a job says, on its way into the database: gathered for a moment, then written together."""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import islice
from typing import Protocol

from sqlalchemy.exc import DataError

from winnow.deploy.server.audit_throttle import AuditThrottle
from winnow.deploy.server.leader_writes import SERVER_SOURCE, LeaderWrites, NewLogLine
from winnow.deploy.server.sanitise_text import printable_line
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.errors import one_line
from winnow.deploy.wire.messages import LOG_KIND, AbsentSite

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.3
"""Seconds between writes."""
MAX_METRICS = 100
"""That one source may have, by name."""
MAX_METRIC_NAME = 100


class AuditWriter(Protocol):
    """The audit's pen; blocking."""

    def __call__(self, peer: Peer | None, what: str, target: str, outcome: str) -> None:
        """`peer` is None for what the server does of its own accord."""


class JobLogs:
    """`most` is how many lines one source may add to a job's log."""

    def __init__(self, ledger: LeaderWrites, auditor: AuditWriter, *, most: int) -> None:
        self._ledger = ledger
        self._auditor = auditor
        self._most = most
        self._repeats = AuditThrottle()
        self._told: Counter[tuple[str, str]] = Counter()
        self._waiting: dict[str, list[NewLogLine]] = defaultdict(list)
        self._absences: dict[str, dict[str, AbsentSite | None]] = defaultdict(dict)
        self._changed: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def add(self, job: str, line: NewLogLine) -> None:
        self._waiting[job].append(line)

    def note_absence(self, job: str, absence: AbsentSite | str) -> None:
        """A site is left out of a job, or (its name alone) no longer is."""
        if isinstance(absence, AbsentSite):
            self._absences[job][absence.site] = absence
        else:
            self._absences[job][absence] = None

    def say(self, job: str, source: str, text: str) -> None:
        """A line of a job's own code or of a site, who may say too much."""
        if self._may_add(job, source):
            self.add(job, NewLogLine(source=source, kind=LOG_KIND, text=printable_line(text)))

    def _may_add(self, job: str, source: str) -> bool:
        """Whether there is room for one more; the first for which there is none is answered with a line."""
        self._told[job, source] += 1
        if self._told[job, source] == self._most + 1:
            whose = "the job" if source == SERVER_SOURCE else f"site {source}"
            said = f"{whose} has said too much; what else it says is dropped"
            self.add(job, NewLogLine(source=source, kind=LOG_KIND, text=said))
        return self._told[job, source] <= self._most

    async def audit(self, peer: Peer | None, what: str, target: str, outcome: str) -> None:
        await asyncio.to_thread(self._auditor, peer, what, target, outcome)

    async def audit_request(self, peer: Peer, what: str, target: str, outcome: str) -> None:
        """That somebody asked for something, and whether it was granted. What is repeated too often is counted."""
        if not self._repeats.counts(peer, what, target, outcome):
            await self.audit(peer, what, target, outcome)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()
            await self.tell_repeats()

    async def tell_repeats(self, *, all: bool = False) -> None:
        """Write down what was counted, once its time is over."""
        for peer, what, outcome in self._repeats.over(all=all):
            await self.audit(peer, what, "", outcome)

    async def flush(self) -> None:
        """Write what waits. Lines of one job stay in order."""
        absences, self._absences = self._absences, defaultdict(dict)
        for job, changes in absences.items():
            await asyncio.to_thread(self._ledger.note_absences, job, changes)
        waiting, self._waiting = self._waiting, defaultdict(list)
        for job, lines in waiting.items():
            try:
                await asyncio.to_thread(self._ledger.append, job, lines)
            except DataError as error:
                log.error("job %s: lines that the database does not take are dropped: %s", job, one_line(error.orig))
            self.wake(job)

    def wake(self, job: str) -> None:
        """There is something new about the job."""
        self._changed.pop(job, asyncio.Event()).set()

    async def news(self, job: str, seconds: float) -> None:
        """Wait for something new about the job, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed[job].wait()
        except TimeoutError:
            return

    def forget(self, job: str) -> None:
        for told in [told for told in self._told if told[0] == job]:
            del self._told[told]
        self.wake(job)


def bounded_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """The first `MAX_METRICS` of those whose names are short enough."""
    return dict(islice(((name, value) for name, value in metrics.items() if len(name) <= MAX_METRIC_NAME), MAX_METRICS))
