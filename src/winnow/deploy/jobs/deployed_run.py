"""Runs a workflow over the sites of a job: every round is committed before the next one starts."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from winnow.core import (
    AnyEvent,
    Arrays,
    Assessed,
    ConfigError,
    Federation,
    PolicyApplied,
    Rejected,
    RoundFinished,
    Snapshot,
    Workflow,
)
from winnow.core.events import ALARMS
from winnow.core.join_names import listed
from winnow.data.types import AS_GIVEN
from winnow.deploy.jobs.client_names import client_names
from winnow.deploy.jobs.federation import DeployedFederation
from winnow.deploy.jobs.ipc_messages import CommitRound, RoundCommitted, RunnerLogLine, StartJob, ToRunner
from winnow.deploy.jobs.job_clocks import WallClock
from winnow.deploy.jobs.lazy_array_loading import open_arrays
from winnow.deploy.jobs.parent_channel import ParentChannel
from winnow.deploy.jobs.snapshot_file import load_snapshot, save_snapshot
from winnow.deploy.wire.safetensors_files import write_arrays_without_digest
from winnow.runs import RunView, file_names, result_record
from winnow.runs.client_table import ACTION_TEXT, alarm_text
from winnow.runs.event_log import EventLog, encode_event, json_default

OnEvent = Callable[[AnyEvent], object]

MAX_NAMED_CLIENTS = 10_000
"""Names of more clients are not in the checkpoint, which is written after every round, but only in the result."""
MAX_LOGGED_NAMES = 20
"""Clients that one line of a job's log names."""
MAX_LOGGED_REASONS = 1000
"""Different reasons for rejected replies that a job's log may contain."""


class DeployedRun:
    """Runs any workflow over the sites of a job, and commits its rounds."""

    def __init__(self, server: ParentChannel[ToRunner], start: StartJob) -> None:
        self._server, self.start = server, start
        self.folder = Path(start.folder)
        self._started = False
        self.client_names = client_names(start.members)
        self._logged_reasons: set[tuple[str, str]] = set()
        self._logged_alarms: list[str] = []
        self._events = Path(start.events or self.folder / file_names.EVENTS)
        if start.checkpoint is None:
            self._events.write_bytes(b"")
        self.log = EventLog(self._events)
        """All events so far, in a file: a job may have any number of rounds."""
        self.output: dict[str, str] = {}
        self.lines: list[str] = []
        """Events since the last committed round; at the end, why the run stopped."""

    def refuse_second_run(self) -> None:
        """Raise if the job's program has started a run before."""
        if self._started:
            raise ConfigError("a job can contain only one run; submit each further run as a separate job")
        self._started = True

    def committed_state(self, *, in_memory: bool = True) -> Snapshot | None:
        """The workflow's state after the last committed round, if there is one; earlier events are in the log."""
        if self.start.checkpoint is None:
            return None
        return load_snapshot(Path(self.start.checkpoint), in_memory=in_memory)

    def execute(
        self,
        workflow: Workflow,
        on_event: OnEvent,
        *,
        now: float = 0.0,
        rounds: int = 0,
        task_timeout: float | None = None,
        wrap_federation: Callable[[Federation], Federation] = lambda federation: federation,
    ) -> None:
        """Run the workflow to its end. `wrap_federation` adds filters to the federation."""
        deployed = DeployedFederation(self._server, self.start.members, self.folder, WallClock(now), task_timeout)
        with self._events.open("ab", buffering=0) as log:
            for event in workflow.run(wrap_federation(deployed)):
                line = encode_event(event)
                log.write(line)
                self.lines.append(line.decode().rstrip("\n"))
                if isinstance(event, Rejected):
                    self._log_rejection(deployed.site_of(event.client), event)
                if isinstance(event, Assessed):
                    self._log_alarms(event)
                if isinstance(event, PolicyApplied):
                    name = self.client_names[event.client]
                    self.log_line(f"round {event.round}: {ACTION_TEXT[event.action]}: {name}")
                if isinstance(event, RoundFinished):
                    self._commit(workflow, deployed, event, rounds)
                    self.lines.clear()
                on_event(event)

    def conditions(self) -> dict[str, Any]:
        """What conditions.json says: clients' names and sizes. Nobody here knows what their data are like."""
        sizes = [size for member in self.start.members for size in member.data.sizes]
        return {"labels": [AS_GIVEN], "of_client": [0] * len(sizes), "names": self.client_names, "sizes": sizes}

    def log_line(self, line: str) -> None:
        """Add a line to the job's log, if it says anything."""
        if line:
            self._server.send(RunnerLogLine(line=line))

    def _log_rejection(self, site: str, event: Rejected) -> None:
        """Log why a site's reply was rejected, once for each reason; the events have every case."""
        if (site, event.reason) not in self._logged_reasons and len(self._logged_reasons) < MAX_LOGGED_REASONS:
            self._logged_reasons.add((site, event.reason))
            name = self.client_names[event.client]
            self.log_line(f"round {event.round}: reply of {name} rejected: {event.reason}")

    def _log_alarms(self, event: Assessed) -> None:
        """Log whose data look bad, when that changes; why is in the run folder, which the log is not to repeat."""
        told = zip(event.clients.tolist(), event.verdicts, strict=True)
        bad = [f"{self.client_names[client]} ({verdict})" for client, verdict in told if verdict in ALARMS]
        if bad != self._logged_alarms:
            self._logged_alarms = bad
            names = f": {listed(bad, MAX_LOGGED_NAMES)}" if bad else ""
            self.log_line(f"round {event.round}: {alarm_text(len(bad), len(event.clients))}{names}")

    def _commit(self, workflow: Workflow, deployed: DeployedFederation, event: RoundFinished, rounds: int) -> None:
        path = self.folder / f"round-{event.round}"
        state = workflow.snapshot()
        known = {"clients": self.conditions()} if len(self.client_names) <= MAX_NAMED_CLIENTS else {}
        save_snapshot(path, Snapshot(arrays=state.arrays, values={"now": event.at, **known, **state.values}))
        settled, ended = deployed.end_round()
        self._server.send(
            CommitRound(
                round=event.round,
                rounds=rounds,
                checkpoint=str(path),
                lines=list(self.lines),
                settled=settled,
                ended_tasks=ended,
                metrics={data: dict(values) for data, values in event.metrics.items()},
            )
        )
        while (done := self._server.receive(RoundCommitted)) is not None and done.round < event.round:
            pass
        path.unlink(missing_ok=True)

    def store(self, arrays: Arrays) -> Arrays:
        """Write arrays to a file that disappears once it is unused; one array at a time is in memory."""
        path = self.folder / "stored"
        write_arrays_without_digest(path, arrays)
        try:
            return open_arrays(path)
        finally:
            path.unlink()

    def add_output(self, name: str, text: str) -> None:
        """Add a file to the job's output."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        self.output[name] = str(path)

    def add_result(
        self, view: RunView, *, parameters: int = 0, message_bytes: int = 0, private: Sequence[str] = ()
    ) -> None:
        """Add the files that mark a run folder as that of a finished run."""
        summary = view.summary()
        record = result_record(
            summary,
            view.label,
            parameters=parameters,
            message_bytes=message_bytes,
            wall_seconds=summary.seconds,
            private=private,
        )
        self.add_output(file_names.CONDITIONS, json.dumps(self.conditions()))
        self.add_output(file_names.LABEL, view.label.to_json())
        self.add_output(file_names.RESULT, json.dumps(record, default=json_default))
