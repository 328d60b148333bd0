"""A site's desk in a job: tasks come in as files and go out as files, through the handlers."""

import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from winnow.core import Failure, Filter, Handler, Outcome, Payload, Task, WinnowError, wrap
from winnow.deploy.jobs.array_files import MAX_IN_MEMORY_BYTES, open_arrays, open_parts
from winnow.deploy.jobs.bootstrap import redacted_error
from winnow.deploy.jobs.ipc import RunTask, TaskResult
from winnow.deploy.jobs.task_settings import decode_settings
from winnow.deploy.wire.messages import ClientResult, WireTask
from winnow.deploy.wire.safetensors_files import write_parts


@dataclass(frozen=True, kw_only=True)
class SiteHandlers:
    """What a site can do in a job, and with what."""

    site: Any
    handlers: Mapping[str, Handler[Any]]
    filters: Sequence[Filter[Any]] = ()
    sealing: Sequence[Filter[Any]] = ()
    """Around all filters, the site's own among them: what these let out nobody can read or judge any more."""
    volatile: frozenset[str] = frozenset()
    """Handlers whose answers hold only while this process lives."""
    settings: Mapping[str, type] = field(default_factory=dict)
    """Of tasks by their names, where they are no plain values."""
    in_memory: int | None = MAX_IN_MEMORY_BYTES
    """Parts of tasks with more bytes stay in their files; none do if it is None."""


class TaskExecutor:
    """Answers tasks. What goes wrong is told without a word about the data."""

    def __init__(self, job: str, folder: Path, service: SiteHandlers) -> None:
        self._job, self._folder, self._service = job, folder, service
        filters = (*service.sealing, *service.filters)
        self._handlers = {name: wrap(handler, filters) for name, handler in service.handlers.items()}
        self._files = 0

    def answer(self, order: RunTask) -> list[TaskResult]:
        """One answer a client."""
        task = order.task
        if task.name not in self._handlers:
            return self._failures(task, f"this site cannot {task.name}")
        begun = time.perf_counter()
        try:
            outcomes = self._handlers[task.name](self._tasks(order), self._service.site)
            seconds = (time.perf_counter() - begun) / max(1, len(outcomes))
            return [self._did(task, outcome, seconds) for outcome in outcomes]
        except Exception as error:
            if not isinstance(error, WinnowError):
                traceback.print_exc()  # for the site's own log
            return self._failures(task, redacted_error(error))

    def _tasks(self, order: RunTask) -> list[Task]:
        wire = order.task
        in_memory = self._service.in_memory
        payload: Payload = {part: open_arrays(Path(path), in_memory) for part, path in order.parts.items()}
        settings = decode_settings(wire.name, wire.settings, self._service.settings)
        return [
            Task(
                name=wire.name,
                client=client,
                round=wire.round,
                version=wire.version,
                payload=payload,
                settings=settings,
                peer_messages=wire.peer_messages.get(client, {}),
                client_state=open_parts(Path(order.client_state[client]), in_memory)
                if client in order.client_state
                else {},
            )
            for client in wire.clients
        ]

    def _did(self, task: WireTask, outcome: Outcome, seconds: float) -> TaskResult:
        client = outcome.task.client
        if isinstance(outcome, Failure):
            return self._failed(task, client, outcome.stage, outcome.reason)
        answer = ClientResult(
            job=self._job,
            task=task.id,
            client=client,
            metrics={name: float(value) for name, value in outcome.metrics.items()},
            seconds=seconds,
            peer_messages=dict(outcome.peer_messages),
        )
        return TaskResult(
            answer=answer,
            payload=self._written(outcome.payload),
            new_client_state=self._written(outcome.new_client_state),
            volatile=task.name in self._service.volatile,
        )

    def _failures(self, task: WireTask, reason: str) -> list[TaskResult]:
        return [self._failed(task, client, task.name, reason) for client in task.clients]

    def _failed(self, task: WireTask, client: int, stage: str, reason: str) -> TaskResult:
        answer = ClientResult(job=self._job, task=task.id, client=client, stage=stage, failure=reason)
        return TaskResult(answer=answer, volatile=True)

    def _written(self, parts: Payload) -> str | None:
        if not parts:
            return None
        self._files += 1
        path = self._folder / f"out-{self._files}.safetensors"
        write_parts(path, parts)
        return str(path)
