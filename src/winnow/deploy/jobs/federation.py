"""The federation of a deployed job, as its runner sees it: clients at sites, which are reached through the server."""

import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from winnow.core import UNTIL_ALL, Exchange, Failure, Outcome, Population, Randomness, Reply, Task, Until
from winnow.deploy.jobs.aggregated_and_ended_tasks import EndedTasks, SettledClients, SettlementTracker
from winnow.deploy.jobs.ipc_messages import (
    DispatchTask,
    ExchangeMessage,
    JobSite,
    PauseDeadlines,
    ResultArrived,
    ToRunner,
    WithdrawTasks,
)
from winnow.deploy.jobs.job_clocks import DeadlineClock, WallClock
from winnow.deploy.jobs.parent_channel import ParentChannel
from winnow.deploy.jobs.wire_tasks import WireTaskWriter, outcomes_of
from winnow.learn.secure_randomness import secure_stream


class DeployedFederation:
    """Sends tasks to the sites that host the clients, and receives their results."""

    def __init__(
        self,
        server: ParentChannel[ToRunner],
        members: Sequence[JobSite],
        folder: Path,
        clock: WallClock,
        task_timeout: float | None = None,
    ) -> None:
        """`task_timeout` is how many seconds a client may take to answer."""
        self._server, self.clock, self.task_timeout = server, clock, task_timeout
        self._site_of = [member.site for member in members for _ in member.data.sizes]
        sizes = np.array([size for each in members for size in each.data.sizes], np.int64)
        self.population = Population(sizes=sizes, names=tuple(self._site_of))
        self.randomness: Randomness = secure_stream
        self.simulated = False
        self.wire_tasks = WireTaskWriter(folder / "blobs", self._site_of)
        self.settlement, self.deadline_clock = SettlementTracker(), DeadlineClock()
        self._awaited: dict[tuple[str, int], list[tuple[DeployedExchange, Task]]] = defaultdict(list)
        """By wire task and client: who waits for the result. Several exchanges may be open."""

    def site_of(self, client: int) -> str:
        return self._site_of[client]

    def dispatch(self, tasks: Iterable[Task], until: Until = UNTIL_ALL) -> "DeployedExchange":
        exchange = DeployedExchange(self, self._server, until)
        exchange.send(tasks)
        return exchange

    def settle(self, tasks: Iterable[Task]) -> None:
        self.settlement.aggregated(tasks)

    def end_round(self) -> tuple[SettledClients, EndedTasks]:
        """By site: the clients whose replies were aggregated in this round, and the tasks that ended."""
        settled, ended = self.settlement.end_round()
        if self.settlement.idle:  # else open tasks may still need their blobs
            self.wire_tasks.delete_blobs()
        return settled, ended

    # For exchanges ----------------------------------------------------------------------------------------------------

    def await_result(self, exchange: "DeployedExchange", task_id: str, task: Task) -> None:
        self._awaited[task_id, task.client].append((exchange, task))

    def deliver(self, message: ExchangeMessage) -> None:
        """Hand a result to the exchanges that wait for it, which need not be the one that received it."""
        if isinstance(message, PauseDeadlines):
            self.deadline_clock.set_paused(message.on)
            return
        assert isinstance(message, ResultArrived)
        result = message.result
        waiting = self._awaited.pop((result.task, result.client), [])
        outcomes = outcomes_of(result, message.path, [task for _, task in waiting], len(self._site_of))
        for (exchange, _), outcome in zip(waiting, outcomes, strict=True):
            exchange.add_outcome(result.task, outcome)

    def stop_waiting(self, exchange: "DeployedExchange", task_id: str, client: int) -> tuple[list[Task], bool]:
        """This exchange no longer waits for a result: the tasks for which it did, and whether no other one waits."""
        waiting = self._awaited.pop((task_id, client), [])
        others = [each for each in waiting if each[0] is not exchange]
        if others:
            self._awaited[task_id, client] = others
        else:
            self.settlement.ended(task_id, client)
        return [task for owner, task in waiting if owner is exchange], not others


class DeployedExchange(Exchange):
    """An open exchange with sites. Wire tasks are known by their ids."""

    def __init__(self, federation: DeployedFederation, server: ParentChannel[ToRunner], until: Until) -> None:
        self._federation, self._server, self._until = federation, server, until
        self._clock = federation.deadline_clock
        self._deadline = math.inf if until.seconds is None else self._clock.now + until.seconds
        self._open: dict[tuple[str, int], float] = {}
        """By wire task and client: until when a result is awaited."""
        self._site_of: dict[str, str] = {}
        self._ready: deque[tuple[str, Outcome]] = deque()
        self._replied = 0

    def send(self, tasks: Iterable[Task], since: float | None = None) -> None:
        timeout = self._federation.task_timeout
        deadline = math.inf if timeout is None else self._clock.now + timeout
        for site, wire_task, combined in self._federation.wire_tasks.combine(list(tasks)):
            self._federation.settlement.begin(site, wire_task.id, combined)
            for task in combined:
                self._federation.await_result(self, wire_task.id, task)
                self._open[wire_task.id, task.client] = deadline
            self._site_of[wire_task.id] = site
            self._server.send(DispatchTask(site=site, task=wire_task))

    def __iter__(self) -> Iterator[Outcome]:
        while self._replied != self._until.replies:
            if not self._ready and not self._wait():
                return
            task_id, outcome = self._ready.popleft()
            self._federation.settlement.ended(task_id, outcome.task.client)
            self._replied += isinstance(outcome, Reply)
            yield outcome

    def _wait(self) -> bool:
        """Wait until an outcome is ready. False if there will be none: all have arrived, or time is up."""
        while self._open and not self._ready:
            left = self._clock.remaining(min(self._deadline, *self._open.values()))
            message = self._server.receive(ExchangeMessage, None if left == math.inf else left) if left > 0 else None
            if message is not None:
                self._federation.deliver(message)
            elif self._clock.now >= self._deadline:
                return False
            else:
                self._expire()
        return bool(self._ready)

    def _expire(self) -> None:
        """Clients that have not answered in time have failed; the exchange continues with the others."""
        now = self._clock.now
        late = [key for key, deadline in self._open.items() if deadline <= now]
        reason = f"no answer within {self._federation.task_timeout:g} seconds"
        for (task_id, _), tasks in zip(late, self._withdraw(late), strict=True):
            self._ready.extend((task_id, Failure(task=task, stage="waiting", reason=reason)) for task in tasks)

    def add_outcome(self, task_id: str, outcome: Outcome) -> None:
        self._open.pop((task_id, outcome.task.client), None)
        self._ready.append((task_id, outcome))

    def _withdraw(self, keys: Sequence[tuple[str, int]]) -> list[list[Task]]:
        """Stop waiting for these results; for each, the tasks that waited for it. Sites are told of wire tasks of which
        no result is awaited any more.
        """
        given_up, withdrawn = [], defaultdict[str, list[str]](list)
        for task_id, client in keys:
            tasks, by_all = self._federation.stop_waiting(self, task_id, client)
            given_up.append(tasks)
            del self._open[task_id, client]
            still_open = any(other == task_id for other, _ in self._open)
            site = self._site_of[task_id]
            if by_all and not still_open and task_id not in withdrawn[site]:
                withdrawn[site].append(task_id)
        for site, task_ids in withdrawn.items():
            if task_ids:
                self._server.send(WithdrawTasks(site=site, tasks=task_ids))
        return given_up

    def cancel(self, clients: Collection[int]) -> None:
        self._withdraw([key for key in self._open if key[1] in clients])
        for task_id, outcome in self._ready:
            if outcome.task.client in clients:
                self._federation.settlement.ended(task_id, outcome.task.client)
        self._ready = deque(each for each in self._ready if each[1].task.client not in clients)

    def close(self) -> None:
        self._withdraw(list(self._open))
        for task_id, outcome in self._ready:
            self._federation.settlement.ended(task_id, outcome.task.client)
        self._ready.clear()
