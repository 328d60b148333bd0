"""A job's runner and its sites' executors in one process: all is written, read and committed as between processes."""

import shutil
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from winnow.config.schema import Experiment
from winnow.deploy.jobs import job_clocks
from winnow.deploy.jobs.deployed_run import DeployedRun
from winnow.deploy.jobs.ipc_messages import (
    CommitRound,
    DispatchTask,
    JobSite,
    ResultArrived,
    RoundCommitted,
    RunnerLogLine,
    RunTask,
    StartJob,
    WithdrawTasks,
)
from winnow.deploy.jobs.party_data import SiteData
from winnow.deploy.jobs.server_training import run_training
from winnow.deploy.jobs.site_training import training_handlers
from winnow.deploy.jobs.task_executor import TaskExecutor
from winnow.experiment.build_training_workflow import DEFAULT_INPUTS
from winnow.experiment.run import Result
from winnow.privacy.secagg.simulated_identities import simulated_identities


class StoppedError(Exception):
    """The test wants the runner to end here."""


class Loopback:
    """Stands where a runner's channel to its server is: tasks are done when they are sent."""

    def __init__(self, experiment: Experiment, sites: Sequence[SiteData], server: dict[str, Any], folder: Path) -> None:
        self.experiment, self.server, self.folder = experiment, server, folder
        self.members, self.executors, self.sites = [], [], sites
        first = 0
        for number, data in enumerate(sites):
            described = data.description()
            place = folder / f"site-{number}"
            place.mkdir(parents=True)
            self.members.append(JobSite(site=str(number), first_client=first, data=described))
            service = training_handlers(experiment, DEFAULT_INPUTS, data, first, simulated_identities())
            self.executors.append(TaskExecutor("job", place, service))
            first += len(described.sizes)
        self.kept: dict[int, str] = {}
        self.proposed: dict[tuple[str, int], str] = {}
        self.checkpoint: Path | None = None
        self.lines: list[str] = []
        self.stop_after: int | None = None
        self._messages: deque[Any] = deque()

    def run(self, stop_after: int | None = None) -> Result:
        self._messages.clear()
        self.stop_after = stop_after
        job = self.folder / "job"
        shutil.rmtree(job, ignore_errors=True)
        job.mkdir()
        events = self.folder / "events.jsonl"
        events.write_text("".join(f"{line}\n" for line in self.lines))
        begin = StartJob(
            job="job",
            folder=str(job),
            bundle="",
            checkpoint=None if self.checkpoint is None else str(self.checkpoint),
            round=0,
            members=self.members,
            data={self.experiment.data.name: self.server},
            events=str(events),
        )
        return run_training(DeployedRun(self, begin), self.experiment, DEFAULT_INPUTS, lambda event: None)

    def send(self, message: Any) -> None:
        if isinstance(message, DispatchTask):
            self._do(message)
        elif isinstance(message, CommitRound):
            self._commit(message)
        else:
            assert isinstance(message, WithdrawTasks | RunnerLogLine)

    def receive(self, wanted: type, timeout: float | None = None) -> Any:
        for place, message in enumerate(self._messages):
            if isinstance(message, wanted):
                del self._messages[place]
                return message
        return None

    def _do(self, message: DispatchTask) -> None:
        task, blobs = message.task, self.folder / "job" / "blobs"
        parts = {part: str(blobs / blob.digest) for part, blob in task.parts.items()}
        kept = {client: self.kept[client] for client in task.clients if client in self.kept}
        for did in self.executors[int(message.site)].execute(RunTask(task=task, parts=parts, client_state=kept)):
            if did.new_client_state:
                self.proposed[task.id, did.result.client] = did.new_client_state
            self._messages.append(ResultArrived(result=did.result, path=did.payload))

    def _commit(self, message: CommitRound) -> None:
        self.checkpoint = self.folder / "committed"
        shutil.copy(message.checkpoint, self.checkpoint)
        self.lines += message.lines
        for tasks in message.settled.values():
            for task, clients in tasks.items():
                for client in clients:
                    if (task, client) in self.proposed:
                        self.kept[client] = self.proposed.pop((task, client))
        if message.round == self.stop_after:
            raise StoppedError
        self._messages.append(RoundCommitted(round=message.round))


class TimedLoopback(Loopback):
    """Clients take as long as a simulated fleet's, on a clock that moves when the runner waits."""

    def __init__(self, experiment: Experiment, *given: Any) -> None:
        super().__init__(experiment, *given)
        self.now = 0.0
        self._due: dict[tuple[int, str, int], float] = {}
        """When a client is done with a task of a round; a task that is sent again goes on."""
        self._arrivals: list[tuple[float, ResultArrived]] = []
        sizes = [size for member in self.members for size in member.data.sizes]
        fleet = experiment.fleet.draw(len(sizes), experiment.seed)
        busy = experiment.client.training_factor > 0  # idle clients answer at once
        self._seconds: NDArray[np.float64] = busy * fleet.seconds(np.arange(len(sizes)), 1)

    def run(self, stop_after: int | None = None) -> Result:
        self._arrivals.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(job_clocks, "time", SimpleNamespace(monotonic=lambda: self.now))
            return super().run(stop_after)

    def send(self, message: Any) -> None:
        super().send(message)
        if isinstance(message, WithdrawTasks):
            self._arrivals = [each for each in self._arrivals if each[1].result.task not in message.tasks]
        elif isinstance(message, DispatchTask):
            made, self._messages = self._messages, deque()
            self._arrivals += [self._timed(each, message.task.name, message.task.round) for each in made]

    def _timed(self, arrived: ResultArrived, name: str, round: int) -> tuple[float, ResultArrived]:
        client = arrived.result.client
        seconds = float(self._seconds[client])
        due = self._due.setdefault((client, name, round), self.now + seconds)
        return due, replace(arrived, result=replace(arrived.result, seconds=seconds))

    def receive(self, wanted: type, timeout: float | None = None) -> Any:
        ready = super().receive(wanted, timeout)
        if ready is not None or wanted is RoundCommitted:
            return ready
        first = min(self._arrivals, key=lambda each: each[0], default=None)
        if first is None or (timeout is not None and first[0] > self.now + timeout):
            self.now += (timeout or 0.0) + 1e-9  # as clocks do, it moves past the moment
            return None
        self._arrivals.remove(first)
        self.now = max(self.now, first[0])
        return first[1]
