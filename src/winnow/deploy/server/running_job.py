"""A job while it runs: its process, restarted from the last committed round when it dies, and what it asks for."""

import asyncio
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from winnow.core import WinnowError
from winnow.deploy.jobs.bundle_format import Bundle, read_bundle
from winnow.deploy.jobs.ipc import (
    CommitRound,
    DispatchTask,
    FromRunner,
    JobFailed,
    JobFinished,
    JobSite,
    PauseDeadlines,
    ResultArrived,
    RoundCommitted,
    RunnerLogLine,
    StartJob,
    StopRunner,
    WithdrawTasks,
)
from winnow.deploy.sandbox.isolation import Sandbox, sandbox_unavailable_reason
from winnow.deploy.sandbox.launch import RUNNER_MODULE
from winnow.deploy.server.blob_store import BlobStore
from winnow.deploy.server.integrity import DamagedRecordsError, verified_chunks
from winnow.deploy.server.job_logs import MAX_METRICS, JobLogs, bounded_metrics
from winnow.deploy.server.leader_writes import SERVER_SOURCE, LeaderWrites, NewLogLine, RoundOrderError
from winnow.deploy.server.lease import LeaseLostError
from winnow.deploy.server.limits import runner_limits
from winnow.deploy.server.queries import Queries
from winnow.deploy.server.reply_inboxes import ReplyInboxes
from winnow.deploy.server.runner_process import RUNNER_LOG, RunnerProcess
from winnow.deploy.server.site_hub import SiteHub
from winnow.deploy.server.warm_runner import WarmRunner
from winnow.deploy.wire.messages import EVENT_KIND, LOG_KIND, Blob, ClientResult, Settle

log = logging.getLogger(__name__)

MAX_RESTARTS = 3
"""New starts in a row without a committed round between them."""
RESTART_DELAY = 0.5
"""Seconds before the first new start; they double."""
STOP_SECONDS = 2.0
"""Seconds a runner has to end by itself."""
CHECKPOINTS_RUNNING, CHECKPOINTS_ENDED = 2, 1
"""Checkpoints of a job that runs, and of one that has ended."""
MAX_OUTPUTS, MAX_OUTPUT_NAME = 1000, 200
"""Files that a job may put out, and letters in the name of one."""


class RunnerError(WinnowError):
    """A runner asked for something that makes no sense."""


@dataclass(frozen=True, kw_only=True)
class LeaderContext:
    """What all runs of a leader share."""

    ledger: LeaderWrites
    records: Queries
    blobs: BlobStore
    hub: SiteHub
    journal: JobLogs
    inboxes: ReplyInboxes
    jobs: Path
    data: dict[str, dict[str, Any]]
    memory_mb: int
    disk_mb: int
    """What the process of a job with code of its own may use."""
    unfenced: bool = False
    runner: str = RUNNER_MODULE
    spare: WarmRunner


@dataclass(frozen=True, kw_only=True)
class JobOutcome:
    """How a run ended: finished with these outputs, or failed for this reason."""

    outputs: dict[str, Blob] | None = None
    failure: str = ""


class RunningJob:
    """One job, over as many lives of its process as it takes."""

    def __init__(self, workshop: LeaderContext, job: str, bundle: Blob, members: Sequence[JobSite]) -> None:
        self.job = job
        self._shop = workshop
        self._bundle = bundle
        self.members = list(members)
        self._process: RunnerProcess | None = None
        self._folder: Path | None = None
        self._lives = 0
        self._starts = 0
        self._progress = 0
        self._goodbye = ""
        self._again = False

    @property
    def parts(self) -> Path | None:
        """Where the blobs of the tasks lie."""
        return None if self._folder is None else self._folder / "blobs"

    def answered(self, answer: ClientResult, path: Path | None) -> None:
        if self._process is not None:
            self._process.send(ResultArrived(answer=answer, path=None if path is None else str(path)))

    async def run(self) -> JobOutcome:
        """Until the job has ended; cancelling it ends the process."""
        while True:
            why = "the job's process ended"
            try:
                ending = await self._live()
            except (LeaseLostError, SQLAlchemyError):
                raise
            except (RoundOrderError, RunnerError) as error:
                return JobOutcome(failure=f"its process cannot be followed: {error}")
            except DamagedRecordsError as error:
                return JobOutcome(failure=str(error))
            except (WinnowError, OSError) as error:
                ending, why = None, f"the job cannot go on now: {error}"
            finally:
                await self._bury()
            if ending is not None:
                return ending
            if self._again:
                self._again = False
                self._say(f"enough sites are back; the job starts again from round {self._progress}")
                continue
            self._lives += 1
            if self._lives > MAX_RESTARTS:
                return JobOutcome(
                    failure=f"its process ended {self._lives} times without finishing a round; see its log"
                )
            where = f"after round {self._progress}" if self._progress else "from its beginning"
            self._say(f"{why}; it is taken up again {where} (attempt {self._lives} of {MAX_RESTARTS})")
            await asyncio.sleep(RESTART_DELAY * 2 ** (self._lives - 1))

    def prepare_to_end(self, reason: str) -> None:
        """Whoever cancels this run wants its process to be told why, and to end by itself if it does so soon."""
        self._goodbye = reason

    def hold(self, on: bool) -> None:
        """Whether deadlines stand still."""
        if self._process is not None:
            self._process.send(PauseDeadlines(on=on))

    def start_again(self) -> None:
        """Go back to the last committed round."""
        self._again = self._process is not None
        self.kill()

    def kill(self) -> None:
        """At once: we lead no more."""
        if self._process is not None:
            self._process.kill()

    # ------------------------------------------------------------------------------------------------------------------

    async def _live(self) -> JobOutcome | None:
        """One life; None if the process died."""
        if self._starts:
            for member in self.members:
                self._shop.hub.restart(member.site, self.job)
        begin, bundle = await asyncio.to_thread(self._prepare)
        process = self._process = RunnerProcess(
            Path(begin.folder),
            self._shop.jobs / self.job / RUNNER_LOG,
            limits=runner_limits(bundle, self._shop.memory_mb, self._shop.disk_mb),
            sandbox=self._sandbox(bundle, begin.data),
            worker=self._shop.runner,
            launch=self._shop.spare.launch,
        )
        log.info("job %s: process %d goes on after round %d", self.job, process.pid, begin.round)
        process.send(begin)
        while (message := await process.receive()) is not None:
            ending = await self._heed(process, message)
            if ending is not None:
                return ending
        if process.exceeded_disk:
            return JobOutcome(
                failure=f"its process was ended: it wrote more than {self._shop.disk_mb} MB, which is code_disk_mb of "
                "the server's [limits]"
            )
        return None

    def _sandbox(self, bundle: Bundle, data: Mapping[str, Mapping[str, Any]]) -> Sandbox | None:
        """The walls around code of the job's own: it sees its folder, its replies and the data that it asks for."""
        if not bundle.own_code or self._shop.unfenced:
            return None
        if reason := sandbox_unavailable_reason():
            raise RunnerError(f"it brings code of its own, which this server cannot shut in: {reason}")
        job = self._shop.jobs / self.job
        named = [str(each) for table in data.values() for each in table.values() if isinstance(each, str)]
        return Sandbox(read=[str(job), *filter(os.path.isabs, named)], write=[str(self._folder)])

    def _prepare(self) -> tuple[StartJob, Bundle]:
        """A fresh folder for each life: a process that is still dying must not write into the next one's."""
        token = self._shop.ledger.fence.token
        last = self._shop.records.last_round(self.job)
        self._progress = 0 if last is None else last.number
        for old in (self._shop.jobs / self.job).glob("run-*"):
            if int(old.name.split("-")[1]) <= token:  # else we were replaced and have yet to notice
                shutil.rmtree(old, ignore_errors=True)
        self._starts += 1
        folder = self._shop.jobs / self.job / f"run-{token}-{self._starts}"
        (folder / "blobs").mkdir(parents=True)
        self._folder = folder
        checkpoint = None if last is None else last.checkpoint
        self._shop.records.write_events(self.job, folder / "events.jsonl")
        path = self._copy(self._bundle, folder / "bundle")
        bundle = read_bundle(path.read_bytes())
        begin = StartJob(
            job=self.job,
            folder=str(folder),
            bundle=str(path),
            checkpoint=None if checkpoint is None else str(self._copy(checkpoint, folder / "checkpoint")),
            round=self._progress,
            members=self.members,
            data={name: table for name, table in self._shop.data.items() if name == bundle.data_name},
            events=str(folder / "events.jsonl"),
        )
        return begin, bundle

    def _copy(self, blob: Blob, path: Path) -> Path:
        what = f"the {path.name} of job {self.job} after round {self._progress}"
        with path.open("wb") as file:
            for chunk in verified_chunks(self._shop.blobs.read(self.job, blob), blob, what):
                file.write(chunk)
        return path

    async def _heed(self, process: RunnerProcess, message: FromRunner) -> JobOutcome | None:
        match message:
            case DispatchTask():
                self._known(message.site)
                self._shop.hub.assign(message.site, self.job, message.task)
            case WithdrawTasks():
                self._known(message.site)
                self._shop.hub.withdraw(message.site, self.job, message.tasks)
            case RunnerLogLine():
                self._shop.journal.say(self.job, SERVER_SOURCE, message.line)
            case CommitRound():
                await self._commit(message)
                process.send(RoundCommitted(round=message.round))
            case JobFinished():
                await self._add_events(message.lines)
                return JobOutcome(outputs=await asyncio.to_thread(self._keep, message))
            case JobFailed():
                return JobOutcome(failure=message.reason)
        return None

    def _known(self, site: str) -> None:
        if site not in {member.site for member in self.members}:
            raise RunnerError(f"it asked for {site}, which has no part in the job")

    async def _commit(self, commit: CommitRound) -> None:
        """The model first, then the round; only then do sites and people hear of it."""
        await self._shop.journal.flush()
        hub, sites = self._shop.hub, [member.site for member in self.members]
        checkpoint = await asyncio.to_thread(self._shop.blobs.put, self.job, self._own(commit.checkpoint))
        await asyncio.to_thread(
            self._shop.ledger.commit_round,
            self.job,
            number=commit.round,
            rounds=commit.rounds,
            checkpoint=checkpoint,
            settled=commit.settled,
            over=commit.over,
            heard={site: hub.heard(site, self.job) for site in sites},
            metrics={source: bounded_metrics(commit.metrics[source]) for source in list(commit.metrics)[:MAX_METRICS]},
            lines=_events(commit.lines),
        )
        self._progress, self._lives = commit.round, 0
        log.info("job %s: round %d is committed", self.job, commit.round)
        for site in sites:
            tasks, over = commit.settled.get(site, {}), commit.over.get(site, [])
            hub.settle(site, Settle(job=self.job, round=commit.round, tasks=tasks, ended_tasks=over))
        self._shop.journal.wake(self.job)
        await asyncio.to_thread(self._shop.inboxes.sweep, self.job)
        await self.retire(CHECKPOINTS_RUNNING)

    async def _add_events(self, lines: list[str]) -> None:
        """What a job tells after its last round."""
        await self._shop.journal.flush()
        await asyncio.to_thread(self._shop.ledger.append, self.job, _events(lines))
        self._shop.journal.wake(self.job)

    async def retire(self, keep: int) -> None:
        """Clear away checkpoints that nobody will go back to."""
        old = await asyncio.to_thread(self._shop.ledger.retire_checkpoints, self.job, keep)
        await asyncio.to_thread(self._shop.blobs.remove, self.job, old)

    def _keep(self, finished: JobFinished) -> dict[str, Blob]:
        if len(finished.output) > MAX_OUTPUTS:
            raise RunnerError(f"it put out {len(finished.output)} files; {MAX_OUTPUTS} are the most")
        for name in finished.output:
            if not (0 < len(name) <= MAX_OUTPUT_NAME and name.isprintable()):
                raise RunnerError(f"it put out a file called {name[:50]!r}, which is no name for one")
        return {name: self._shop.blobs.put(self.job, self._own(path)) for name, path in finished.output.items()}

    def _own(self, path: str) -> Path:
        """A runner hands over files of its own folder, nobody else's."""
        assert self._folder is not None
        own = Path(path).resolve()
        if not own.is_relative_to(self._folder.resolve()) or not own.is_file():
            raise RunnerError(f"it handed over {own.name}, which is not a file of its folder")
        return own

    async def _bury(self) -> None:
        if self._process is not None:
            if self._goodbye:
                self._process.send(StopRunner(reason=self._goodbye))
            await self._process.end(patience=STOP_SECONDS if self._goodbye else 0.0)
        self._process = None
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        self._folder = None

    def _say(self, text: str) -> None:
        log.warning("job %s: %s", self.job, text)
        self._shop.journal.add(self.job, NewLogLine(source=SERVER_SOURCE, kind=LOG_KIND, text=text))


def _events(lines: list[str]) -> list[NewLogLine]:
    return [NewLogLine(source=SERVER_SOURCE, kind=EVENT_KIND, text=line) for line in lines]
