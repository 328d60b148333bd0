"""A job's runner and its sites' desks in one process: all is written, read and committed as between processes."""

import shutil
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from winnow.config.schema import Experiment
from winnow.deploy.jobs.deployed_run import DeployedRun
from winnow.deploy.jobs.ipc import (
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
from winnow.deploy.jobs.local_data import SiteData
from winnow.deploy.jobs.server_training import learn
from winnow.deploy.jobs.site_training import training_handlers
from winnow.deploy.jobs.task_executor import TaskExecutor
from winnow.experiment.run import Result
from winnow.experiment.setup import DEFAULT_INPUTS
from winnow.privacy.secagg.simulated_identities import simulated_identities


class StoppedError(Exception):
    """The test wants the runner to end here."""


class Loopback:
    """Stands where a runner's line to its server is: tasks are done when they are sent."""

    def __init__(self, experiment: Experiment, sites: Sequence[SiteData], server: dict[str, Any], folder: Path) -> None:
        self.experiment, self.server, self.folder = experiment, server, folder
        self.members, self.desks, self.sites = [], [], sites
        first = 0
        for number, data in enumerate(sites):
            described = data.description()
            place = folder / f"site-{number}"
            place.mkdir(parents=True)
            self.members.append(JobSite(site=str(number), clients_from=first, data=described))
            service = training_handlers(experiment, DEFAULT_INPUTS, data, first, simulated_identities())
            self.desks.append(TaskExecutor("job", place, service))
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
        return learn(DeployedRun(self, begin), self.experiment, DEFAULT_INPUTS, lambda event: None)

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
        for did in self.desks[int(message.site)].answer(RunTask(task=task, parts=parts, kept=kept)):
            if did.keep:
                self.proposed[task.id, did.answer.client] = did.keep
            self._messages.append(ResultArrived(answer=did.answer, path=did.payload))

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
