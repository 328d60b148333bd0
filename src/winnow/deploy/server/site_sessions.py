"""What the leader keeps in mind of each site: its session, the orders under way, and its part in every job.

A session is a conversation that may break off at any time. What must not be lost lies in the parts: a new session is
given everything that is outstanding again.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from uuid import uuid4

import msgspec

from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.messages import (
    AssignTask,
    ClientResult,
    DataDescription,
    DeployJob,
    Hello,
    Resources,
    Settle,
    SiteInstruction,
    SiteInstructions,
    StopJob,
    WireTask,
)

MAX_LATE_TASKS = 1_000
"""Tasks that are over which a part keeps in mind."""
BATCH_BYTES = 1 << 20
"""Of the orders in one message, unless a single one is larger."""


def reply_digest(answer: ClientResult) -> bytes:
    """Tells a repeated answer from a different one."""
    return sha256(msgspec.msgpack.encode(answer)).digest()


@dataclass(kw_only=True)
class OpenTask:
    """A task and the clients whose answers are still missing."""

    task: WireTask
    waiting: set[int]
    asked: float = field(default_factory=time.time)


@dataclass(kw_only=True)
class Participation:
    """A site's part in one job."""

    deploy: DeployJob
    data: DataDescription | None = None
    """As it was when the job began; another one later is an error."""
    out: str = ""
    """Why the site is left out at present, if so."""
    out_since: float | None = None
    """By the wall's clock, while it is left out of a running job."""
    offers: int = 0
    """How often it was asked again since it was left out."""
    offer_at: float | None = None
    """When it is asked again; None while nothing is to be asked, or its answer is awaited."""
    left_out: set[int] = field(default_factory=set)
    """Rounds that go on without it."""
    tasks: dict[str, OpenTask] = field(default_factory=dict)
    answered: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """By task and client, fingerprints of what was answered, until the task is over."""
    blobs: dict[str, dict[int, str]] = field(default_factory=dict)
    """By task and client, the digests of answers' blobs that may still be needed."""
    late: dict[str, None] = field(default_factory=dict)
    """Tasks whose answers come too late, the latest last."""
    settles: list[Settle] = field(default_factory=list)
    """Of which the site has not said that it heard them, the oldest first."""
    round: int = 0
    """The last one that was settled."""
    resumed: bool = False
    """Whether an earlier runner may have asked what we do not know of; until the next round is settled."""

    @property
    def heard(self) -> int:
        """The last round such that the site has heard of it and of all before."""
        return self.settles[0].round - 1 if self.settles else self.round

    def orders(self) -> Iterable[SiteInstruction]:
        """All that a new session must hear. A site that is left out gets its tasks once it takes part again."""
        yield self.deploy
        yield from self.settles
        if not self.out:
            yield from self.assignments()

    def assignments(self) -> Iterable[AssignTask]:
        """Its open tasks."""
        for open_task in self.tasks.values():
            yield AssignTask(job=self.deploy.job, task=open_task.task)

    def forget_tasks(self) -> None:
        """A new runner asks anew."""
        self.tasks.clear()
        self.answered.clear()
        self.blobs.clear()
        self.left_out.clear()
        self.resumed = True

    def ask(self, task: WireTask) -> None:
        """Wait for the task's answers; also if it was asked, answered or withdrawn before, since somebody wants them
        again.
        """
        self.late.pop(task.id, None)
        self.answered.pop(task.id, None)
        self.tasks[task.id] = OpenTask(task=task, waiting=set(task.clients))

    def accept(self, answer: ClientResult) -> bool:
        """Whether it was waited for."""
        open_task = self.tasks.get(answer.task)
        if open_task is None or answer.client not in open_task.waiting:
            return False
        open_task.waiting.discard(answer.client)
        if not open_task.waiting:
            del self.tasks[answer.task]
        self.answered.setdefault(answer.task, {})[answer.client] = reply_digest(answer)
        if answer.blob is not None:
            self.blobs.setdefault(answer.task, {})[answer.client] = answer.blob.digest
        return True

    def withdraw(self, task: str) -> bool:
        """Nobody waits for the task any more; whether anybody did."""
        if self.tasks.pop(task, None) is None:
            return False
        self._too_late(task)
        return True

    def settled(self, order: Settle) -> set[str]:
        """The digests of blobs that nobody needs any more: those of replies that were folded, and of tasks that are
        over.
        """
        self.round = max(self.round, order.round)
        self.left_out = {number for number in self.left_out if number > order.round}
        if order.tasks or order.ended_tasks:
            self.settles.append(order)
        gone: set[str] = set()
        for task, clients in order.tasks.items():
            blobs = self.blobs.get(task, {})
            gone.update(blobs.pop(client) for client in clients if client in blobs)
        for task in order.ended_tasks:
            gone.update(self.blobs.pop(task, {}).values())
            self.answered.pop(task, None)
            self.tasks.pop(task, None)
            self._too_late(task)
        return gone - self.needed()

    def needed(self) -> set[str]:
        """The digests of blobs of answers that may still be folded."""
        return set().union(*(each.values() for each in self.blobs.values()))

    def _too_late(self, task: str) -> None:
        self.late[task] = None
        if len(self.late) > MAX_LATE_TASKS:
            del self.late[next(iter(self.late))]


class SiteConnection:
    """One conversation with a site: numbered orders, of which those not acknowledged are sent again."""

    def __init__(self, peer: Peer, hello: Hello) -> None:
        self.id = uuid4().hex
        self.peer = peer
        self.hello = hello
        self.free = hello.resources
        self.over = False
        self._news = asyncio.Event()
        self._orders: deque[tuple[int, SiteInstruction]] = deque()
        self._next = 1

    def add(self, order: SiteInstruction) -> None:
        self._orders.append((self._next, order))
        self._next += 1
        self._news.set()

    def has(self, order: AssignTask) -> bool:
        """Whether this task is among the orders that were not acknowledged."""
        tasks = ((each.job, each.task.id) for _, each in self._orders if isinstance(each, AssignTask))
        return (order.job, order.task.id) in tasks

    def end(self) -> None:
        """Another session has taken its place, or nobody is there: let the one who waits go."""
        self.over = True
        self._news.set()

    def acknowledge(self, received: int) -> list[SiteInstruction]:
        """Drop what the site has received; those orders."""
        heard: list[SiteInstruction] = []
        while self._orders and self._orders[0][0] <= received:
            heard.append(self._orders.popleft()[1])
        if not self._orders and not self.over:
            self._news.clear()
        return heard

    async def wait(self, seconds: float) -> None:
        """Until there is something to say, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return

    def batch(self) -> SiteInstructions:
        """As many orders as fit one message, from the first that was not acknowledged."""
        first = self._orders[0][0] if self._orders else self._next
        chosen: list[SiteInstruction] = []
        room = BATCH_BYTES
        for _, order in self._orders:
            room -= len(msgspec.msgpack.encode(order))
            if chosen and room < 0:
                break
            chosen.append(order)
        return SiteInstructions(first_number=first, instructions=chosen)


@dataclass(kw_only=True)
class SiteSession:
    """All about one site."""

    site: str
    seen: float
    """When the last word from it came; when we began to listen, if there was none."""
    seen_at: float | None = None
    """The same by the wall's clock; None if there was none."""
    peer: Peer | None = None
    """Its certificate's owner, where that is known."""
    session: SiteConnection | None = None
    parts: dict[str, Participation] = field(default_factory=dict)

    def tell(self, order: SiteInstruction) -> None:
        """Now, if the site is there; else its parts say what it will hear when it comes."""
        if self.session is not None:
            self.session.add(order)

    def repeat(self, order: AssignTask) -> None:
        """Say it once more, unless it has yet to be heard anyway."""
        if self.session is not None and not self.session.has(order):
            self.session.add(order)

    def welcome(self, session: SiteConnection) -> None:
        """A new session takes over. It hears what is outstanding, and that its other jobs are over."""
        if self.session is not None:
            self.session.end()
        self.session, self.peer = session, session.peer
        for job in session.hello.jobs:
            if job not in self.parts:
                session.add(StopJob(job=job, reason="the job is over"))
        for part in self.parts.values():
            part.offer_at = None  # it is asked now
            for order in part.orders():
                session.add(order)

    def hear(self, now: float) -> None:
        """A word came from it."""
        self.seen, self.seen_at = now, time.time()

    def disconnect(self) -> None:
        if self.session is not None:
            self.session.end()
        self.session = None

    def heard(self, received: int) -> None:
        """The site acknowledges its orders; what it knows to be settled need not be said again."""
        if self.session is None:
            return
        for order in self.session.acknowledge(received):
            if isinstance(order, Settle) and (part := self.parts.get(order.job)) is not None and order in part.settles:
                part.settles.remove(order)

    def taken(self) -> Resources:
        """What its jobs were promised."""
        asked = [part.deploy.resources for part in self.parts.values() if not part.out]
        return Resources(
            cpus=sum(each.cpus for each in asked),
            memory_mb=sum(each.memory_mb for each in asked),
            gpus=sum(each.gpus for each in asked),
        )

    def has_room(self, wanted: Resources) -> bool:
        """By what the site offers less what we promised, and by what it last said is free."""
        if self.session is None:
            return False
        total, taken, free = self.session.hello.resources, self.taken(), self.session.free
        return all(
            getattr(wanted, kind) <= min(getattr(total, kind) - getattr(taken, kind), getattr(free, kind))
            for kind in ("cpus", "memory_mb", "gpus")
        )


MonotonicClock = Callable[[], float]
