"""What travels: a task to one client, and its reply.

These are msgspec structs: a simulation makes thousands of them a round, several times as fast as dataclasses. They are
never part of a cycle, so the garbage collector need not look at them.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from math import fsum
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct, field

Arrays: TypeAlias = Mapping[str, Any]
"""Named arrays. The core never looks inside; they are torch tensors in a process and safetensors on a wire."""

Payload: TypeAlias = Mapping[str, Arrays]
"""Named parts (a model, a profile, a control variate), each a group of named arrays."""


class Work(Struct, frozen=True, kw_only=True, gc=False):
    """What a task asks of a device. A virtual clock turns it into seconds and joules.

    Passes count sweeps over the client's own samples; bytes count what crosses its link.
    """

    training_passes: float = 0.0
    profiling_passes: float = 0.0
    download_bytes: int = 0
    upload_bytes: int = 0
    profile_bytes: int = 0


NO_WORK = Work()


class Task(Struct, frozen=True, kw_only=True, gc=False):
    """A typed request to one client. `name` chooses the handler, `settings` is that handler's own frozen type."""

    name: str
    client: int
    round: int
    version: int
    payload: Payload = field(default_factory=dict)
    settings: object = None
    work: Work = NO_WORK
    peer_messages: Mapping[int, bytes] = field(default_factory=dict)
    """What other clients, by number, have written to this one; the workflow passes it on unread."""
    client_state: Payload = field(default_factory=dict)
    """What the site keeps for this client. The site itself puts it here; it never travels."""
    id: int = field(default_factory=count(1).__next__)
    """Tells one task from another in this process. Copies that are changed on their way keep it, and so do those of a
    broadcast, which differ in their clients.
    """


class Cost(NamedTuple):
    """What a reply cost its device: seconds and joules, each split by what they were spent on, and what crossed its
    link; no bytes at all says that nobody counted them.

    A tuple, because a simulation makes one for every reply.
    """

    transfer_seconds: float = 0.0
    training_seconds: float = 0.0
    profiling_seconds: float = 0.0
    transfer_joules: float = 0.0
    training_joules: float = 0.0
    profiling_joules: float = 0.0
    sent_bytes: float = 0.0
    received_bytes: float = 0.0

    @property
    def seconds(self) -> float:
        return self.transfer_seconds + self.training_seconds + self.profiling_seconds

    @property
    def joules(self) -> float:
        return self.transfer_joules + self.training_joules + self.profiling_joules

    def record(self) -> dict[str, float]:
        """By name, without bytes that nobody counted."""
        return {name: value for name, value in self._asdict().items() if value or name not in BYTES}

    @classmethod
    def total(cls, costs: Sequence["Cost"]) -> "Cost":
        """What several devices spent together, kind by kind."""
        return cls(*map(fsum, zip(*costs, strict=True))) if costs else NO_COST


NO_COST = Cost()
BYTES = ("sent_bytes", "received_bytes")


class Reply(Struct, frozen=True, kw_only=True, gc=False):
    """What a client answers: named parts, plain metrics, and what it cost."""

    task: Task
    payload: Payload = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    cost: Cost = NO_COST
    peer_messages: Mapping[int, bytes] = field(default_factory=dict)
    """What this client writes to others, by number. Whoever carries it can read what is not sealed."""
    new_client_state: Payload = field(default_factory=dict)
    """What the site will keep for this client once the reply has been folded; it never travels either."""


class Failure(Struct, frozen=True, kw_only=True, gc=False):
    """A task that will not be answered, and why."""

    task: Task
    stage: str
    reason: str


Outcome: TypeAlias = Reply | Failure
