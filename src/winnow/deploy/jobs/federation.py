"""The federation as a job's runner sees it: clients at sites, reached through the server, on the wall's clock."""

import math
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from winnow.core import (
    UNTIL_ALL,
    Arrays,
    Cost,
    Failure,
    Outcome,
    Payload,
    Population,
    Randomness,
    Reply,
    Task,
    Until,
    WinnowError,
)
from winnow.core.untrusted_text import error_line, one_line
from winnow.deploy.jobs.array_files import open_parts
from winnow.deploy.jobs.ipc import (
    DispatchTask,
    ExchangeMessage,
    JobSite,
    PauseDeadlines,
    ResultArrived,
    ToRunner,
    WithdrawTasks,
)
from winnow.deploy.jobs.parent_channel import ParentChannel
from winnow.deploy.jobs.settlement import SettledClients, SettlementTracker
from winnow.deploy.jobs.task_settings import encode_settings
from winnow.deploy.wire.errors import WireError
from winnow.deploy.wire.messages import Blob, ClientResult, WireTask
from winnow.deploy.wire.safetensors_files import write_arrays
from winnow.deploy.wire.task_digest import NO_TASK_ID, with_task_id
from winnow.learn.randomness import secure_stream

MAX_PEER_MESSAGE_BYTES = 1 << 20
"""Bytes of letters that one message carries, unless a single client's are more."""


class WallClock:
    """Seconds since the job began; one that was interrupted goes on where it was."""

    def __init__(self, now: float = 0.0) -> None:
        self._zero = time.monotonic() - now

    @property
    def now(self) -> float:
        return time.monotonic() - self._zero


class DeadlineClock:
    """Seconds that count towards deadlines: none pass while the job waits for sites."""

    def __init__(self) -> None:
        self._waited = 0.0
        self._since: float | None = None

    @property
    def now(self) -> float:
        return (time.monotonic() if self._since is None else self._since) - self._waited

    def until(self, due: float) -> float:
        """How many seconds are left; all there are while the job waits."""
        return math.inf if self._since is not None else due - self.now

    def hold(self, waits: PauseDeadlines) -> None:
        if waits.on and self._since is None:
            self._since = time.monotonic()
        elif not waits.on and self._since is not None:
            self._waited += time.monotonic() - self._since
            self._since = None


class DeployedFederation:
    """Hands tasks to the sites that host the clients, and brings back what they answer."""

    def __init__(
        self,
        line: ParentChannel[ToRunner],
        members: Sequence[JobSite],
        folder: Path,
        clock: WallClock,
        deadline: float | None = None,
    ) -> None:
        """`deadline` is how many seconds a client may take to answer."""
        self._line, self._clock, self.deadline = line, clock, deadline
        self._blobs = folder / "blobs"
        self._blobs.mkdir(exist_ok=True)
        sizes = [size for member in members for size in member.data.sizes]
        self._population = Population(sizes=np.array(sizes, np.int64))
        self._site_of = [member.site for member in members for _ in member.data.sizes]
        self._written: dict[int, tuple[Arrays, Blob]] = {}
        self.settling, self.patience = SettlementTracker(), DeadlineClock()
        self._awaited: dict[tuple[str, int], list[tuple[WireExchange, Task]]] = defaultdict(list)
        """Who waits for the answer of a task's client: several exchanges may be open."""

    @property
    def population(self) -> Population:
        return self._population

    def site_of(self, client: int) -> str:
        return self._site_of[client]

    @property
    def clock(self) -> WallClock:
        return self._clock

    @property
    def randomness(self) -> Randomness:
        return secure_stream

    @property
    def simulated(self) -> bool:
        return False

    def dispatch(self, tasks: Iterable[Task], until: Until = UNTIL_ALL) -> "WireExchange":
        exchange = WireExchange(self, self._line, until)
        exchange.send(tasks)
        return exchange

    def settle(self, tasks: Iterable[Task]) -> None:
        self.settling.fold(tasks)

    def over(self) -> tuple[SettledClients, dict[str, list[str]]]:
        """At the end of a round: by site, whose replies were folded, and which tasks have come to their end."""
        told = self.settling.take()
        if self.settling.idle:  # else tasks under way may still need what they were sent
            self._forget_blobs()
        return told

    # For exchanges ----------------------------------------------------------------------------------------------------

    def wire_tasks(self, tasks: Sequence[Task]) -> Iterator[tuple[str, WireTask, list[Task]]]:
        """The tasks as they travel: those that ask the same of clients of one site are one."""
        groups: dict[tuple[Any, ...], list[Task]] = defaultdict(list)
        for task in tasks:
            parts = tuple((name, id(arrays)) for name, arrays in task.payload.items())
            settings = encode_settings(task.settings)
            key = (self._site_of[task.client], task.name, task.round, task.version, settings, parts)
            groups[key].append(task)
        for (site, name, number, version, settings, _), alike in groups.items():
            for members in _in_messages(alike):
                wire = with_task_id(
                    WireTask(
                        id=NO_TASK_ID,
                        name=name,
                        clients=sorted({task.client for task in members}),
                        round=number,
                        version=version,
                        settings=settings,
                        parts=self._parts(members[0].payload),
                        peer_messages={task.client: dict(task.peer_messages) for task in members if task.peer_messages},
                    )
                )
                self.settling.begin(site, wire.id, members)
                yield site, wire, members

    def expect(self, exchange: "WireExchange", id_: str, task: Task) -> None:
        self._awaited[id_, task.client].append((exchange, task))

    def deliver(self, heard: ExchangeMessage) -> None:
        """Hand an answer to whoever waits for it, which need not be who listened."""
        if isinstance(heard, PauseDeadlines):
            self.patience.hold(heard)
            return
        assert isinstance(heard, ResultArrived)
        answer = heard.result
        awaiting = self._awaited.pop((answer.task, answer.client), [])
        outcomes = outcomes_of(answer, heard.path, [task for _, task in awaiting], len(self._site_of))
        for (exchange, _), outcome in zip(awaiting, outcomes, strict=True):
            exchange.take(answer.task, outcome)

    def give_up(self, exchange: "WireExchange", id_: str, client: int) -> tuple[list[Task], bool]:
        """This exchange waits no more: for which tasks it did, and whether nobody does any longer."""
        awaiting = self._awaited.pop((id_, client), [])
        others = [each for each in awaiting if each[0] is not exchange]
        if others:
            self._awaited[id_, client] = others
        else:
            self.settling.ended(id_, client)
        return [task for owner, task in awaiting if owner is exchange], not others

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
        """Delete the files of what was sent."""
        for _, blob in self._written.values():
            (self._blobs / blob.digest).unlink(missing_ok=True)
        self._written.clear()


class WireExchange:
    """An open exchange with sites."""

    def __init__(self, federation: DeployedFederation, line: ParentChannel[ToRunner], until: Until) -> None:
        self._federation, self._line, self._until = federation, line, until
        self._end = math.inf if until.seconds is None else federation.patience.now + until.seconds
        self._open: dict[tuple[str, int], float] = {}
        """What is to be answered, and until when."""
        self._site_of: dict[str, str] = {}
        self._ready: deque[tuple[str, Outcome]] = deque()
        self._replied = 0

    def send(self, tasks: Iterable[Task], since: float | None = None) -> None:
        deadline = self._federation.deadline
        due = math.inf if deadline is None else self._federation.patience.now + deadline
        for site, wire, members in self._federation.wire_tasks(list(tasks)):
            for task in members:
                self._federation.expect(self, wire.id, task)
                self._open[wire.id, task.client] = due
            self._site_of[wire.id] = site
            self._line.send(DispatchTask(site=site, task=wire))

    def __iter__(self) -> Iterator[Outcome]:
        while self._replied != self._until.replies:
            if not self._ready and not self._listen():
                return
            id_, outcome = self._ready.popleft()
            self._federation.settling.ended(id_, outcome.task.client)
            self._replied += isinstance(outcome, Reply)
            yield outcome

    def _listen(self) -> bool:
        """Wait until one of our tasks is answered, or will not be; whether there is anything to tell."""
        while self._open and not self._ready:
            patience = self._federation.patience
            left = patience.until(min(self._end, *self._open.values()))
            heard = self._line.receive(ExchangeMessage, None if left == math.inf else left) if left > 0 else None
            if heard is not None:
                self._federation.deliver(heard)
            elif patience.now >= self._end:
                return False
            else:
                self._expire()
        return bool(self._ready)

    def _expire(self) -> None:
        """Those who have not answered in time have failed; the others go on."""
        now = self._federation.patience.now
        late = [key for key, due in self._open.items() if due <= now]
        reason = f"no answer within {self._federation.deadline:g} seconds"
        for key, tasks in zip(late, self._withdraw(late), strict=True):
            self._ready.extend((key[0], Failure(task=task, stage="waiting", reason=reason)) for task in tasks)

    def take(self, id_: str, outcome: Outcome) -> None:
        """One of our tasks was answered."""
        self._open.pop((id_, outcome.task.client), None)
        self._ready.append((id_, outcome))

    def _withdraw(self, keys: Sequence[tuple[str, int]]) -> list[list[Task]]:
        """Wait for these no more; for which tasks we did."""
        given_up, withdrawn = [], defaultdict[str, list[str]](list)
        for id_, client in keys:
            tasks, by_all = self._federation.give_up(self, id_, client)
            given_up.append(tasks)
            del self._open[id_, client]
            still = any(other == id_ for other, _ in self._open)
            if by_all and not still and id_ not in withdrawn[self._site_of[id_]]:
                withdrawn[self._site_of[id_]].append(id_)
        for site, ids in withdrawn.items():
            if ids:
                self._line.send(WithdrawTasks(site=site, tasks=ids))
        return given_up

    def close(self) -> None:
        self._withdraw(list(self._open))
        for id_, outcome in self._ready:
            self._federation.settling.ended(id_, outcome.task.client)
        self._ready.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def outcomes_of(answer: ClientResult, path: str | None, tasks: Sequence[Task], clients: int) -> list[Outcome]:
    """What an answer, by one of so many clients, means for the tasks that it answers."""
    if answer.failure is not None:
        stage, reason = one_line(answer.stage) or "working", one_line(answer.failure)
        return [Failure(task=task, stage=stage, reason=reason) for task in tasks]
    try:
        payload: Mapping[str, Arrays] = {} if path is None else open_parts(Path(path))
        if any(not 0 <= addressee < clients for addressee in answer.peer_messages):
            raise WireError("it writes to clients that are not in this job")
    except Exception as error:  # one answer never ends the work of all
        reason = str(error) if isinstance(error, WinnowError) else error_line(error)
        return [Failure(task=task, stage="answering", reason=reason) for task in tasks]
    cost = Cost(training_seconds=answer.seconds)
    return [
        Reply(task=task, payload=payload, metrics=answer.metrics, cost=cost, peer_messages=answer.peer_messages)
        for task in tasks
    ]


def _in_messages(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """Tasks that ask the same, as many at a time as fit one message with their letters."""
    chosen: list[Task] = []
    room = MAX_PEER_MESSAGE_BYTES
    for task in tasks:
        weight = sum(map(len, task.peer_messages.values()))
        if chosen and weight > room:
            yield chosen
            chosen, room = [], MAX_PEER_MESSAGE_BYTES
        chosen.append(task)
        room -= weight
    yield chosen
