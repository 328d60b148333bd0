"""What the leader knows of each site: its connection, the instructions under way, and its part in every job.

A connection may break at any time. What must not be lost is in the participations: a new connection sends everything
that is outstanding again.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import uuid4

import msgspec

from winnow.deploy.server.site_job_state import Participation
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.messages import (
    AssignTask,
    Hello,
    Resources,
    Settle,
    SiteInstruction,
    SiteInstructions,
    StopJob,
)

BATCH_BYTES = 1 << 20
"""Bytes of the instructions in one message, unless a single one is larger."""

MonotonicClock = Callable[[], float]


class SiteConnection:
    """Numbered instructions to a site; those that are not acknowledged are sent again."""

    def __init__(self, peer: Peer, hello: Hello) -> None:
        self.id = uuid4().hex
        self.peer = peer
        self.hello = hello
        self.free = hello.resources
        self.ended = False
        self._has_instructions = asyncio.Event()
        self._instructions: deque[tuple[int, SiteInstruction]] = deque()
        self._next = 1

    def add(self, order: SiteInstruction) -> None:
        self._instructions.append((self._next, order))
        self._next += 1
        self._has_instructions.set()

    def has(self, order: AssignTask) -> bool:
        """Whether this task is among the unacknowledged instructions."""
        tasks = ((each.job, each.task.id) for _, each in self._instructions if isinstance(each, AssignTask))
        return (order.job, order.task.id) in tasks

    def end(self) -> None:
        """Another connection replaces it, or the site is gone: release the poll that waits."""
        self.ended = True
        self._has_instructions.set()

    def acknowledge(self, received: int) -> list[SiteInstruction]:
        """Drop the instructions that the site has received; those instructions."""
        acknowledged: list[SiteInstruction] = []
        while self._instructions and self._instructions[0][0] <= received:
            acknowledged.append(self._instructions.popleft()[1])
        if not self._instructions and not self.ended:
            self._has_instructions.clear()
        return acknowledged

    async def wait(self, seconds: float) -> None:
        """Until there is something to send, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._has_instructions.wait()
        except TimeoutError:
            return

    def batch(self) -> SiteInstructions:
        """As many instructions as fit one message, from the first that is not acknowledged."""
        first = self._instructions[0][0] if self._instructions else self._next
        chosen: list[SiteInstruction] = []
        remaining = BATCH_BYTES
        for _, order in self._instructions:
            remaining -= len(msgspec.msgpack.encode(order))
            if chosen and remaining < 0:
                break
            chosen.append(order)
        return SiteInstructions(first_number=first, instructions=chosen)


@dataclass(kw_only=True)
class SiteSession:
    """A site as this leader knows it, over all its connections."""

    site: str
    last_seen: float
    """When it was last in contact; when we became leader, if it was not yet."""
    last_seen_utc: float | None = None
    """The same by the system clock; None if there was no contact yet."""
    peer: Peer | None = None
    """The owner of its certificate, where that is known."""
    connection: SiteConnection | None = None
    participations: dict[str, Participation] = field(default_factory=dict)

    def send(self, order: SiteInstruction) -> None:
        """If the site is connected; else its participations say what it gets when it reconnects."""
        if self.connection is not None:
            self.connection.add(order)

    def resend(self, order: AssignTask) -> None:
        """Once more, unless it is among the unacknowledged instructions anyway."""
        if self.connection is not None and not self.connection.has(order):
            self.connection.add(order)

    def connect(self, connection: SiteConnection) -> None:
        """A new connection takes over. It sends what is outstanding, and that the site's other jobs have ended."""
        if self.connection is not None:
            self.connection.end()
        self.connection, self.peer = connection, connection.peer
        for job in connection.hello.jobs:
            if job not in self.participations:
                connection.add(StopJob(job=job, reason="the job has ended"))
        for participation in self.participations.values():
            participation.retry_at = None  # it is asked now
            for order in participation.outstanding_instructions():
                connection.add(order)

    def mark_seen(self, now: float) -> None:
        self.last_seen, self.last_seen_utc = now, time.time()

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.end()
        self.connection = None

    def acknowledge(self, received: int) -> None:
        """The site has received its instructions; settles that it knows are not sent again."""
        if self.connection is None:
            return
        for order in self.connection.acknowledge(received):
            if not isinstance(order, Settle):
                continue
            participation = self.participations.get(order.job)
            if participation is not None and order in participation.unacknowledged_settles:
                participation.unacknowledged_settles.remove(order)

    def reserved_resources(self) -> Resources:
        """What its jobs were promised."""
        promised = [each.deploy.resources for each in self.participations.values() if not each.exclusion_reason]
        return Resources(
            cpus=sum(each.cpus for each in promised),
            memory_mb=sum(each.memory_mb for each in promised),
            gpus=sum(each.gpus for each in promised),
        )

    def has_capacity(self, wanted: Resources) -> bool:
        """By what the site offers less what we promised, and by what it last reported as free."""
        if self.connection is None:
            return False
        total, reserved, free = self.connection.hello.resources, self.reserved_resources(), self.connection.free
        return all(
            getattr(wanted, kind) <= min(getattr(total, kind) - getattr(reserved, kind), getattr(free, kind))
            for kind in ("cpus", "memory_mb", "gpus")
        )
