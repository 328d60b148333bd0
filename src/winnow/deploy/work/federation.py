"""The federation as a job's runner sees it: clients at sites, reached through the server, on the wall's clock."""

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np

from winnow.core import EVERYONE, Arrays, Cost, Failure, Outcome, Payload, Population, Reply, Task, Until, WinnowError
from winnow.deploy.wire.arrays import write_arrays
from winnow.deploy.wire.messages import Answer, Blob, WireTask
from winnow.deploy.work.line import Line
from winnow.deploy.work.opening import open_parts
from winnow.deploy.work.orders import Answered, Dispatch, Member, ToRunner, Withdraw
from winnow.deploy.work.settings import encode_settings

NO_PART: Arrays = {}


class WallClock:
    """Seconds since the job began; one that was interrupted goes on where it was."""

    def __init__(self, now: float = 0.0) -> None:
        self._zero = time.monotonic() - now

    @property
    def now(self) -> float:
        return time.monotonic() - self._zero


class Deployed:
    """Hands tasks to the sites that host the clients, and brings back what they answer."""

    def __init__(
        self,
        line: Line[ToRunner],
        members: Sequence[Member],
        folder: Path,
        clock: WallClock,
        deadline: float | None = None,
    ) -> None:
        """`deadline` is how many seconds an exchange may take at most."""
        self._line, self._clock, self._deadline = line, clock, deadline
        self._blobs = folder / "blobs"
        self._blobs.mkdir(exist_ok=True)
        sizes = [size for member in members for size in member.data.sizes]
        self._population = Population(sizes=np.array(sizes, np.int64))
        self._site_of = [member.site for member in members for _ in member.data.sizes]
        self._written: dict[int, tuple[Arrays, Blob]] = {}
        self._begun: dict[str, tuple[str, set[int]]] = {}
        self._folded: dict[str, set[int]] = defaultdict(set)
        self._ids: dict[int, tuple[Task, str]] = {}
        self._awaited: dict[tuple[str, int], list[tuple[WireExchange, Task]]] = defaultdict(list)
        """Who waits for the answer of a task's client: several exchanges may be open."""

    @property
    def population(self) -> Population:
        return self._population

    @property
    def clock(self) -> WallClock:
        return self._clock

    def dispatch(self, tasks: Iterable[Task], until: Until = EVERYONE) -> "WireExchange":
        if self._deadline is not None and (until.seconds is None or until.seconds > self._deadline):
            until = Until(replies=until.replies, seconds=self._deadline)
        exchange = WireExchange(self, self._line, until)
        exchange.send(tasks)
        return exchange

    def settle(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            _, id_ = self._ids[id(task)]
            self._folded[id_].add(task.client)

    def over(self) -> dict[str, dict[str, list[int]]]:
        """The tasks that have come to their end since this was asked last, by site, and whose replies were folded.

        A task ends once all its clients have answered or nobody waits for them any more.
        """
        settled: dict[str, dict[str, list[int]]] = defaultdict(dict)
        for id_, (site, open_clients) in list(self._begun.items()):
            if not open_clients:
                settled[site][id_] = sorted(self._folded.pop(id_, ()))
                del self._begun[id_]
        self._ids = {key: known for key, known in self._ids.items() if known[1] in self._begun}
        self._forget_blobs()
        return dict(settled)

    # For exchanges ----------------------------------------------------------------------------------------------------

    def wire_tasks(self, tasks: Sequence[Task]) -> Iterator[tuple[str, WireTask, list[Task]]]:
        """The tasks as they travel: those that ask the same of clients of one site are one."""
        groups: dict[tuple[Any, ...], list[Task]] = defaultdict(list)
        for task in tasks:
            parts = tuple((name, id(arrays)) for name, arrays in task.payload.items())
            settings = encode_settings(task.settings)
            key = (self._site_of[task.client], task.name, task.round, task.version, settings, parts)
            groups[key].append(task)
        for (site, name, number, version, settings, _), members in groups.items():
            wire = _with_id(
                WireTask(
                    id="0" * 64,
                    name=name,
                    clients=sorted({task.client for task in members}),
                    round=number,
                    version=version,
                    settings=settings,
                    parts=self._parts(members[0].payload),
                    letters={task.client: dict(task.letters) for task in members if task.letters},
                )
            )
            self._begun[wire.id] = (site, set(wire.clients))
            self._ids |= {id(task): (task, wire.id) for task in members}
            yield site, wire, members

    def expect(self, exchange: "WireExchange", id_: str, task: Task) -> None:
        self._awaited[id_, task.client].append((exchange, task))

    def deliver(self, answered: Answered) -> None:
        """Hand an answer to whoever waits for it, which need not be who listened."""
        answer = answered.answer
        self.ended(answer.task, [answer.client])
        awaiting = self._awaited.pop((answer.task, answer.client), [])
        outcomes = outcomes_of(answer, answered.path, [task for _, task in awaiting])
        for (exchange, _), outcome in zip(awaiting, outcomes, strict=True):
            exchange.take(answer.task, outcome)

    def give_up(self, exchange: "WireExchange", id_: str, client: int) -> bool:
        """This exchange waits no more; whether nobody does."""
        self._awaited[id_, client] = left = [each for each in self._awaited[id_, client] if each[0] is not exchange]
        if left:
            return False
        del self._awaited[id_, client]
        self.ended(id_, [client])
        return True

    def ended(self, id_: str, clients: Iterable[int]) -> None:
        """Nothing more is to come from these clients."""
        if id_ in self._begun:
            self._begun[id_][1].difference_update(clients)

    def _parts(self, payload: Payload) -> dict[str, Blob]:
        return {name: self._blob(arrays) for name, arrays in payload.items()}

    def _blob(self, arrays: Arrays) -> Blob:
        """The file of a part; parts that are the same object (a model for many clients) are written once."""
        known = self._written.get(id(arrays))
        if known is None:
            temporary = self._blobs / "writing"
            blob = write_arrays(temporary, arrays)
            temporary.rename(self._blobs / blob.digest)
            known = self._written[id(arrays)] = (arrays, blob)
        return known[1]

    def _forget_blobs(self) -> None:
        """Between rounds, only what tasks under way were sent needs to stay."""
        if self._begun:
            return
        for _, blob in self._written.values():
            (self._blobs / blob.digest).unlink(missing_ok=True)
        self._written.clear()


class WireExchange:
    """An open exchange with sites."""

    def __init__(self, federation: Deployed, line: Line[ToRunner], until: Until) -> None:
        self._federation, self._line, self._until = federation, line, until
        self._deadline = None if until.seconds is None else time.monotonic() + until.seconds
        self._open: set[tuple[str, int]] = set()
        self._site_of: dict[str, str] = {}
        self._ready: deque[Outcome] = deque()
        self._replied = 0

    def send(self, tasks: Iterable[Task], since: float | None = None) -> None:
        for site, wire, members in self._federation.wire_tasks(list(tasks)):
            for task in members:
                self._federation.expect(self, wire.id, task)
                self._open.add((wire.id, task.client))
            self._site_of[wire.id] = site
            self._line.send(Dispatch(site=site, task=wire))

    def __iter__(self) -> Iterator[Outcome]:
        while self._replied != self._until.replies:
            if not self._ready and not self._listen():
                return
            outcome = self._ready.popleft()
            self._replied += isinstance(outcome, Reply)
            yield outcome

    def _listen(self) -> bool:
        """Wait until one of our tasks is answered; whether one was."""
        while self._open and not self._ready:
            left = None if self._deadline is None else self._deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            answered = self._line.receive(Answered, left)
            if answered is None:
                return False
            self._federation.deliver(answered)
        return bool(self._ready)

    def take(self, id_: str, outcome: Outcome) -> None:
        """One of our tasks was answered."""
        self._open.discard((id_, outcome.task.client))
        self._ready.append(outcome)

    def close(self) -> None:
        withdrawn: dict[str, list[str]] = defaultdict(list)
        for id_, client in self._open:
            site = self._site_of[id_]
            if self._federation.give_up(self, id_, client) and id_ not in withdrawn[site]:
                withdrawn[site].append(id_)
        for site, ids in withdrawn.items():
            if ids:
                self._line.send(Withdraw(site=site, tasks=ids))
        self._open.clear()
        self._ready.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def outcomes_of(answer: Answer, path: str | None, tasks: Sequence[Task]) -> list[Outcome]:
    """What an answer means for the tasks that it answers."""
    if answer.failure is not None:
        return [Failure(task=task, stage=answer.stage or "working", reason=answer.failure) for task in tasks]
    try:
        payload: Mapping[str, Arrays] = {} if path is None else open_parts(Path(path))
    except WinnowError as error:
        return [Failure(task=task, stage="answering", reason=str(error)) for task in tasks]
    cost = Cost(training_seconds=answer.seconds)
    return [
        Reply(task=task, payload=payload, metrics=answer.metrics, cost=cost, letters=answer.letters) for task in tasks
    ]


def _with_id(task: WireTask) -> WireTask:
    """The task, named by the digest of what it says, whatever order its tables are in."""
    tables = (sorted(task.parts.items()), sorted((to, sorted(letters.items())) for to, letters in task.letters.items()))
    bare = msgspec.structs.replace(task, parts={}, letters={})
    digest = sha256(msgspec.msgpack.encode((bare, tables))).hexdigest()
    return msgspec.structs.replace(task, id=digest)
