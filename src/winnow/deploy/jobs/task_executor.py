"""Runs a site's handlers: tasks come as files, and so do results."""

import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from winnow.core import Failure, Filter, Handler, Outcome, Payload, Task, WinnowError, wrap
from winnow.deploy.jobs.error_redaction import redacted_error
from winnow.deploy.jobs.ipc_messages import RunTask, TaskResult
from winnow.deploy.jobs.lazy_array_loading import MAX_IN_MEMORY_BYTES, open_arrays, open_parts
from winnow.deploy.jobs.task_settings import decode_settings
from winnow.deploy.wire.messages import ClientResult, WireTask
from winnow.deploy.wire.safetensors_files import write_parts


@dataclass(frozen=True, kw_only=True)
class SiteHandlers:
    """The handlers of a site in a job, and what they work with."""

    site: Any
    handlers: Mapping[str, Handler[Any]]
    filters: Sequence[Filter[Any]] = ()
    outer_filters: Sequence[Filter[Any]] = ()
    """Around all filters, the site's own among them: no filter can check what these let out, as it is encrypted."""
    volatile: frozenset[str] = frozenset()
    """Handlers whose results hold only while this process lives."""
    settings: Mapping[str, type] = field(default_factory=dict)
    """Types of tasks' settings by the tasks' names, where they are no plain values."""
    in_memory: int | None = MAX_IN_MEMORY_BYTES
    """Parts of tasks with more bytes stay in their files; none do if it is None."""


class TaskExecutor:
    """Executes tasks. Failures quote nothing of the data."""

    def __init__(self, job: str, folder: Path, site: SiteHandlers) -> None:
        self._job, self._folder, self._site = job, folder, site
        filters = (*site.outer_filters, *site.filters)
        self._handlers = {name: wrap(handler, filters) for name, handler in site.handlers.items()}
        self._files = 0

    def execute(self, run: RunTask) -> list[TaskResult]:
        """One result a client."""
        task = run.task
        if task.name not in self._handlers:
            return self._failures(task, f"this site has no handler for task {task.name!r}")
        started = time.perf_counter()
        try:
            outcomes = self._handlers[task.name](self._tasks(run), self._site.site)
            seconds = (time.perf_counter() - started) / max(1, len(outcomes))
            return [self._result(task, outcome, seconds) for outcome in outcomes]
        except Exception as error:
            if not isinstance(error, WinnowError):
                traceback.print_exc()  # for the site's own log
            return self._failures(task, redacted_error(error))

    def _tasks(self, run: RunTask) -> list[Task]:
        wire, state = run.task, run.client_state
        in_memory = self._site.in_memory
        payload: Payload = {part: open_arrays(Path(path), in_memory) for part, path in run.parts.items()}
        settings = decode_settings(wire.name, wire.settings, self._site.settings)
        return [
            Task(
                name=wire.name,
                client=client,
                round=wire.round,
                version=wire.version,
                payload=payload,
                settings=settings,
                peer_messages=wire.peer_messages.get(client, {}),
                client_state=open_parts(Path(state[client]), in_memory) if client in state else {},
            )
            for client in wire.clients
        ]

    def _result(self, task: WireTask, outcome: Outcome, seconds: float) -> TaskResult:
        client = outcome.task.client
        if isinstance(outcome, Failure):
            return self._failed(task, client, outcome.stage, outcome.reason)
        result = ClientResult(
            job=self._job,
            task=task.id,
            client=client,
            metrics={name: float(value) for name, value in outcome.metrics.items()},
            seconds=seconds,
            peer_messages=dict(outcome.peer_messages),
        )
        return TaskResult(
            result=result,
            payload=self._written(outcome.payload),
            new_client_state=self._written(outcome.new_client_state),
            volatile=task.name in self._site.volatile,
        )

    def _failures(self, task: WireTask, reason: str) -> list[TaskResult]:
        return [self._failed(task, client, task.name, reason) for client in task.clients]

    def _failed(self, task: WireTask, client: int, stage: str, reason: str) -> TaskResult:
        result = ClientResult(job=self._job, task=task.id, client=client, stage=stage, failure=reason)
        return TaskResult(result=result, volatile=True)

    def _written(self, parts: Payload) -> str | None:
        if not parts:
            return None
        self._files += 1
        path = self._folder / f"out-{self._files}.safetensors"
        write_parts(path, parts)
        return str(path)
