"""What a job says, on its way into the database: gathered for a moment, then written together."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

import msgspec

from winnow.deploy.server.ledger import Ledger, NewLine
from winnow.deploy.trust.identity import Peer

log = logging.getLogger(__name__)

PAUSE = 0.3
"""Seconds between writes."""


class Auditor(Protocol):
    """The audit's pen; blocking."""

    def __call__(self, peer: Peer | None, what: str, target: str, outcome: str) -> None:
        """`peer` is None for what the server does of its own accord."""


class Journal:
    def __init__(self, ledger: Ledger, auditor: Auditor) -> None:
        self._ledger = ledger
        self._auditor = auditor
        self._waiting: dict[str, list[NewLine]] = defaultdict(list)
        self._changed: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.live: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
        """The latest metrics by job and source."""

    def add(self, job: str, line: NewLine) -> None:
        self._waiting[job].append(line)

    def measured(self, job: str, source: str, metrics: Mapping[str, float]) -> None:
        self.live[job][source] = {**self.live[job].get(source, {}), **metrics}
        self.add(job, NewLine(source=source, kind="metric", text=msgspec.json.encode(metrics).decode()))

    async def audit(self, peer: Peer | None, what: str, target: str, outcome: str) -> None:
        await asyncio.to_thread(self._auditor, peer, what, target, outcome)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(PAUSE)
            await self.flush()

    async def flush(self) -> None:
        """Write what waits. Lines of one job stay in order."""
        waiting, self._waiting = self._waiting, defaultdict(list)
        for job, lines in waiting.items():
            await asyncio.to_thread(self._ledger.append, job, lines)
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
        self.live.pop(job, None)
        self.wake(job)
