"""A site's part in one job: the tasks that it has to answer, the replies that came, the rounds that it must settle."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256

import msgspec

from winnow.deploy.wire.messages import (
    AssignTask,
    ClientResult,
    DataDescription,
    DeployJob,
    Settle,
    SiteInstruction,
    WireTask,
)

MAX_LATE_TASKS = 1_000
"""Ended tasks that are remembered."""


def reply_digest(result: ClientResult) -> bytes:
    """Tells a repeated reply from a different one."""
    return sha256(msgspec.msgpack.encode(result)).digest()


@dataclass(kw_only=True)
class OpenTask:
    """A task and the clients whose replies are missing."""

    task: WireTask
    pending_clients: set[int]
    assigned_at: float = field(default_factory=time.time)


@dataclass(kw_only=True)
class Participation:
    deploy: DeployJob
    data: DataDescription | None = None
    """The data with which the job started; different data later are an error."""
    exclusion_reason: str = ""
    """Why the site is excluded at present; empty if it is not."""
    excluded_since: float | None = None
    """By the system clock, while it is excluded from a running job."""
    retries: int = 0
    """How often it was asked again since it was excluded."""
    retry_at: float | None = None
    """When it is asked again; None while there is nothing to ask, or its reply is awaited."""
    excluded_rounds: set[int] = field(default_factory=set)
    """Rounds that continue without it."""
    tasks: dict[str, OpenTask] = field(default_factory=dict)
    answered: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """By task and client, the digests of replies, until the task has ended."""
    blobs: dict[str, dict[int, str]] = field(default_factory=dict)
    """By task and client, the digests of replies' blobs that may still be needed."""
    late_tasks: dict[str, None] = field(default_factory=dict)
    """Ended tasks, the latest last: their replies come too late."""
    unacknowledged_settles: list[Settle] = field(default_factory=list)
    """The oldest first."""
    settled_round: int = 0
    """The last round that was settled."""
    resumed: bool = False
    """Whether an earlier runner may have sent tasks that we do not know of; until the next round is settled."""

    @property
    def acknowledged_round(self) -> int:
        """The last round such that the site has acknowledged it and all before it."""
        return self.unacknowledged_settles[0].round - 1 if self.unacknowledged_settles else self.settled_round

    def outstanding_instructions(self) -> Iterable[SiteInstruction]:
        """All that a new connection must send. An excluded site gets its tasks when it is readmitted."""
        yield self.deploy
        yield from self.unacknowledged_settles
        if not self.exclusion_reason:
            yield from self.assignments()

    def assignments(self) -> Iterable[AssignTask]:
        """Its open tasks."""
        for open_task in self.tasks.values():
            yield AssignTask(job=self.deploy.job, task=open_task.task)

    def clear_tasks(self) -> None:
        """A new runner sends its own."""
        self.tasks.clear()
        self.answered.clear()
        self.blobs.clear()
        self.excluded_rounds.clear()
        self.resumed = True

    def assign(self, task: WireTask) -> None:
        """Wait for the task's replies, also if it was assigned, answered or withdrawn before."""
        self.late_tasks.pop(task.id, None)
        self.answered.pop(task.id, None)
        self.tasks[task.id] = OpenTask(task=task, pending_clients=set(task.clients))

    def accept(self, result: ClientResult) -> bool:
        """Whether the reply was awaited."""
        open_task = self.tasks.get(result.task)
        if open_task is None or result.client not in open_task.pending_clients:
            return False
        open_task.pending_clients.discard(result.client)
        if not open_task.pending_clients:
            del self.tasks[result.task]
        self.answered.setdefault(result.task, {})[result.client] = reply_digest(result)
        if result.blob is not None:
            self.blobs.setdefault(result.task, {})[result.client] = result.blob.digest
        return True

    def withdraw(self, task: str) -> bool:
        """Wait for the task no longer; whether it was open."""
        if self.tasks.pop(task, None) is None:
            return False
        self._end_task(task)
        return True

    def settle(self, order: Settle) -> set[str]:
        """The digests of blobs that are no longer needed: those of aggregated replies and of ended tasks."""
        self.settled_round = max(self.settled_round, order.round)
        self.excluded_rounds = {number for number in self.excluded_rounds if number > order.round}
        if order.tasks or order.ended_tasks:
            self.unacknowledged_settles.append(order)
        unneeded: set[str] = set()
        for task, clients in order.tasks.items():
            blobs = self.blobs.get(task, {})
            unneeded.update(blobs.pop(client) for client in clients if client in blobs)
        for task in order.ended_tasks:
            unneeded.update(self.blobs.pop(task, {}).values())
            self.answered.pop(task, None)
            self.tasks.pop(task, None)
            self._end_task(task)
        return unneeded - self.needed_blobs()

    def needed_blobs(self) -> set[str]:
        """The digests of blobs of replies that may still be aggregated."""
        return set().union(*(each.values() for each in self.blobs.values()))

    def _end_task(self, task: str) -> None:
        self.late_tasks[task] = None
        if len(self.late_tasks) > MAX_LATE_TASKS:
            del self.late_tasks[next(iter(self.late_tasks))]
