"""A job that runs: its process, restarted from the last committed round when it ends early, and what it asks for."""

import asyncio
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from winnow.core import WinnowError
from winnow.deploy.jobs.ipc_messages import (
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
    StopRunner,
    WithdrawTasks,
)
from winnow.deploy.server.database_writes import SERVER_SOURCE, NewLogLine, RoundOrderError
from winnow.deploy.server.job_log_writer import MAX_METRICS, bounded_metrics
from winnow.deploy.server.leader_context import LeaderContext
from winnow.deploy.server.lease import LeaseLostError
from winnow.deploy.server.runner_process_handle import RUNNER_LOG, RunnerProcess
from winnow.deploy.server.runner_start import RunnerError, SandboxUnavailableError, prepare_start
from winnow.deploy.server.stored_record_integrity import DamagedRecordsError
from winnow.deploy.wire.messages import EVENT_KIND, Blob, ClientResult, Settle

log = logging.getLogger(__name__)

MAX_RESTARTS = 3
"""In a row, without a committed round between them."""
RESTART_DELAY = 0.5
"""Seconds before the first restart; they double."""
STOP_SECONDS = 2.0
"""Seconds that a runner has to end by itself."""
CHECKPOINTS_RUNNING, CHECKPOINTS_ENDED = 2, 1
"""Checkpoints that are kept of a running and of an ended job."""
MAX_OUTPUTS, MAX_OUTPUT_NAME = 1000, 200
"""Output files of a job, and characters in the name of one."""


@dataclass(frozen=True, kw_only=True)
class JobOutcome:
    """How a job ended: finished with these outputs, or failed for this reason."""

    outputs: dict[str, Blob] | None = None
    failure: str = ""


class RunningJob:
    """One job, over as many starts of its process as it takes. `last_round` is the last that is committed."""

    def __init__(
        self, context: LeaderContext, job: str, bundle: Blob, members: Sequence[JobSite], *, last_round: int = 0
    ) -> None:
        self.job = job
        self.members = list(members)
        self._context = context
        self._bundle = bundle
        self._process: RunnerProcess | None = None
        self._folder: Path | None = None
        self._starts = self._failed_starts = 0
        self._last_round = last_round
        self._stop_reason = ""
        self._restarting = False

    # What others ask of it --------------------------------------------------------------------------------------------

    @property
    def task_blobs(self) -> Path | None:
        """Where the blobs of its tasks are."""
        return None if self._folder is None else self._folder / "blobs"

    def reply_received(self, result: ClientResult, path: Path | None) -> None:
        if self._process is not None:
            self._process.send(ResultArrived(result=result, path=None if path is None else str(path)))

    def pause_deadlines(self, on: bool) -> None:
        if self._process is not None:
            self._process.send(PauseDeadlines(on=on))

    def restart(self) -> None:
        """Go back to the last committed round. Without a process, it starts from there anyway."""
        if self._process is not None:
            self._restarting = True
            self.kill()

    def set_stop_reason(self, reason: str) -> None:
        """Before `run` is cancelled: its process gets this reason, and a moment to end by itself."""
        self._stop_reason = reason

    def kill(self) -> None:
        """At once: we are no longer the leader."""
        if self._process is not None:
            self._process.kill()

    # Its process ------------------------------------------------------------------------------------------------------

    async def run(self) -> JobOutcome:
        """Until the job has ended; cancelling it ends the process."""
        while True:
            why = "the job's process ended"
            try:
                outcome = await self._run_process()
            except (LeaseLostError, SQLAlchemyError):
                raise
            except (RoundOrderError, RunnerError) as error:
                return JobOutcome(failure=f"the job's process sent an invalid request: {error}")
            except (DamagedRecordsError, SandboxUnavailableError) as error:
                return JobOutcome(failure=str(error))
            except (WinnowError, OSError) as error:
                outcome, why = None, f"the job cannot continue at present: {error}"
            finally:
                await self._stop_process()
            if outcome is not None:
                return outcome
            if self._restarting:
                self._restarting = False
                self._log(f"enough sites are back; the job restarts {restart_point(self._last_round)}")
                continue
            self._failed_starts += 1
            if self._failed_starts > MAX_RESTARTS:
                failed = f"{self._failed_starts} attempts in a row completed no round; the last one: {why}"
                output = f"jobs/{self.job}/{RUNNER_LOG} in the server's state folder"
                return JobOutcome(failure=f"{failed}; the output of the job's process is in {output}")
            where = restart_point(self._last_round)
            self._log(f"{why}; restarting it {where} (attempt {self._failed_starts} of {MAX_RESTARTS})")
            await asyncio.sleep(RESTART_DELAY * 2 ** (self._failed_starts - 1))

    async def _run_process(self) -> JobOutcome | None:
        """One start; None if the process ended early."""
        context = self._context
        if self._starts:
            for member in self.members:
                context.exchange.restart(member.site, self.job)
        self._starts += 1
        start = await asyncio.to_thread(
            prepare_start, context, self.job, self._bundle, self.members, number=self._starts
        )
        self._folder, self._last_round = Path(start.message.folder), start.message.round
        process = self._process = start.start(context)
        log.info("job %s: process %d starts %s", self.job, process.pid, restart_point(self._last_round))
        while (message := await process.receive()) is not None:
            outcome = await self._handle(process, message)
            if outcome is not None:
                return outcome
        if process.exceeded_disk:
            limit = f"{context.disk_mb} MB (limits.custom_code_disk_mb in server.toml)"
            return JobOutcome(failure=f"the job's process was stopped: it wrote more than {limit}")
        return None

    async def _stop_process(self) -> None:
        if self._process is not None:
            if self._stop_reason:
                self._process.send(StopRunner(reason=self._stop_reason))
            await self._process.end(timeout=STOP_SECONDS if self._stop_reason else 0.0)
        self._process = None
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        self._folder = None

    async def _handle(self, process: RunnerProcess, message: FromRunner) -> JobOutcome | None:
        match message:
            case DispatchTask():
                self._check_member(message.site)
                self._context.exchange.assign(message.site, self.job, message.task)
            case WithdrawTasks():
                self._check_member(message.site)
                self._context.exchange.withdraw(message.site, self.job, message.tasks)
            case RunnerLogLine():
                self._context.job_logs.add_untrusted(self.job, message.line)
            case CommitRound():
                await self._commit(message)
                process.send(RoundCommitted(round=message.round))
            case JobFinished():
                await self._add_events(message.lines)
                return JobOutcome(outputs=await asyncio.to_thread(self._store_outputs, message))
            case JobFailed():
                return JobOutcome(failure=message.reason)
        return None

    def _check_member(self, site: str) -> None:
        if site not in {member.site for member in self.members}:
            raise RunnerError(f"it addressed site {site}, which does not participate in the job")

    # What it stores ---------------------------------------------------------------------------------------------------

    async def _commit(self, commit: CommitRound) -> None:
        """The model first, then the round; only then are sites and users told."""
        context, sites = self._context, [member.site for member in self.members]
        await context.job_logs.flush()
        checkpoint = await asyncio.to_thread(context.blobs.put, self.job, self._checked_path(commit.checkpoint))
        await asyncio.to_thread(
            context.writes.commit_round,
            self.job,
            number=commit.round,
            rounds=commit.rounds,
            checkpoint=checkpoint,
            settled=commit.settled,
            ended_tasks=commit.ended_tasks,
            acknowledged={site: context.exchange.acknowledged_round(site, self.job) for site in sites},
            metrics={source: bounded_metrics(commit.metrics[source]) for source in list(commit.metrics)[:MAX_METRICS]},
            lines=_event_lines(commit.lines),
        )
        self._last_round, self._failed_starts = commit.round, 0
        log.info("job %s: round %d is committed", self.job, commit.round)
        for site in sites:
            tasks, ended = commit.settled.get(site, {}), commit.ended_tasks.get(site, [])
            context.exchange.settle(site, Settle(job=self.job, round=commit.round, tasks=tasks, ended_tasks=ended))
        context.job_logs.notify(self.job)
        await asyncio.to_thread(context.inboxes.sweep, self.job)
        await self.remove_old_checkpoints(CHECKPOINTS_RUNNING)

    async def _add_events(self, lines: list[str]) -> None:
        """The events after the last round."""
        await self._context.job_logs.flush()
        await asyncio.to_thread(self._context.writes.append, self.job, _event_lines(lines))
        self._context.job_logs.notify(self.job)

    async def remove_old_checkpoints(self, keep: int) -> None:
        old = await asyncio.to_thread(self._context.writes.retire_checkpoints, self.job, keep)
        await asyncio.to_thread(self._context.blobs.remove, self.job, old)

    def _store_outputs(self, finished: JobFinished) -> dict[str, Blob]:
        if len(finished.output) > MAX_OUTPUTS:
            raise RunnerError(f"it produced {len(finished.output)} output files; the limit is {MAX_OUTPUTS}")
        for name in finished.output:
            if not (0 < len(name) <= MAX_OUTPUT_NAME and name.isprintable()):
                raise RunnerError(f"it produced an output file with the invalid name {name[:50]!r}")
        return {
            name: self._context.blobs.put(self.job, self._checked_path(path)) for name, path in finished.output.items()
        }

    def _checked_path(self, path: str) -> Path:
        """A runner submits files of its own folder only."""
        assert self._folder is not None
        own = Path(path).resolve()
        if not own.is_relative_to(self._folder.resolve()) or not own.is_file():
            raise RunnerError(f"it submitted {own.name}, which is not a file in its own folder")
        return own

    def _log(self, text: str) -> None:
        log.warning("job %s: %s", self.job, text)
        self._context.job_logs.add_server_line(self.job, text)


def restart_point(last_round: int) -> str:
    """Where a job continues whose last committed round is this one (0: there is none)."""
    return f"after round {last_round}" if last_round else "from the beginning"


def _event_lines(lines: list[str]) -> list[NewLogLine]:
    return [NewLogLine(source=SERVER_SOURCE, kind=EVENT_KIND, text=line) for line in lines]
