"""Between a workflow's types and the wire's: tasks become wire tasks, and a client's result becomes outcomes."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from winnow.core import Arrays, Cost, Failure, Outcome, Reply, Task, WinnowError
from winnow.core.untrusted_text import error_line, one_line
from winnow.deploy.jobs.lazy_array_loading import open_parts
from winnow.deploy.jobs.task_settings import encode_settings
from winnow.deploy.wire.errors import WireError
from winnow.deploy.wire.messages import Blob, ClientResult, WireTask
from winnow.deploy.wire.safetensors_files import write_arrays
from winnow.deploy.wire.task_digest import NO_TASK_ID, with_task_id

MAX_PEER_MESSAGE_BYTES = 1 << 20
"""Bytes of peer messages in one wire task, unless those of a single client are more."""


class WireTaskWriter:
    """Combines tasks into wire tasks, and writes their parts as blobs."""

    def __init__(self, folder: Path, site_of: Sequence[str]) -> None:
        """Blobs are written to `folder`; `site_of` names each client's site."""
        self._folder, self._site_of = folder, site_of
        self._folder.mkdir(exist_ok=True)
        self._written: dict[int, tuple[Arrays, Blob]] = {}

    def combine(self, tasks: Sequence[Task]) -> Iterator[tuple[str, WireTask, list[Task]]]:
        """Sites, wire tasks, and the tasks that each combines: those that ask the same of clients of one site."""
        groups: dict[tuple[Any, ...], list[Task]] = defaultdict(list)
        for task in tasks:
            parts = tuple((name, id(arrays)) for name, arrays in task.payload.items())
            settings = encode_settings(task.settings)
            key = (self._site_of[task.client], task.name, task.round, task.version, settings, parts)
            groups[key].append(task)
        for (site, name, number, version, settings, _), alike in groups.items():
            for combined in _split_by_size(alike):
                wire_task = with_task_id(
                    WireTask(
                        id=NO_TASK_ID,
                        name=name,
                        clients=sorted({task.client for task in combined}),
                        round=number,
                        version=version,
                        settings=settings,
                        parts={part: self._blob(arrays) for part, arrays in combined[0].payload.items()},
                        peer_messages={
                            task.client: dict(task.peer_messages) for task in combined if task.peer_messages
                        },
                    )
                )
                yield site, wire_task, combined

    def _blob(self, arrays: Arrays) -> Blob:
        """The file of a part; parts that are the same object (a model for many clients) are written once."""
        known = self._written.get(id(arrays))
        if known is None:
            temporary = self._folder / "writing"
            blob = write_arrays(temporary, arrays)
            temporary.rename(self._folder / blob.digest)
            known = self._written[id(arrays)] = (arrays, blob)
        return known[1]

    def delete_blobs(self) -> None:
        for _, blob in self._written.values():
            (self._folder / blob.digest).unlink(missing_ok=True)
        self._written.clear()


def _split_by_size(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """Tasks that ask the same, as many at a time as fit one message with their peer messages."""
    chosen: list[Task] = []
    free = MAX_PEER_MESSAGE_BYTES
    for task in tasks:
        size = sum(map(len, task.peer_messages.values()))
        if chosen and size > free:
            yield chosen
            chosen, free = [], MAX_PEER_MESSAGE_BYTES
        chosen.append(task)
        free -= size
    yield chosen


def outcomes_of(result: ClientResult, path: str | None, tasks: Sequence[Task], clients: int) -> list[Outcome]:
    """What a client's result means for the tasks that it answers. The job has so many `clients`."""
    if result.failure is not None:
        stage, reason = one_line(result.stage) or "working", one_line(result.failure)
        return [Failure(task=task, stage=stage, reason=reason) for task in tasks]
    try:
        payload: Mapping[str, Arrays] = {} if path is None else open_parts(Path(path))
        if any(not 0 <= recipient < clients for recipient in result.peer_messages):
            raise WireError("it has peer messages to clients that are not in this job")
    except Exception as error:  # one client's result never ends the job for the others
        reason = str(error) if isinstance(error, WinnowError) else error_line(error)
        return [Failure(task=task, stage="answering", reason=reason) for task in tasks]
    cost = Cost(training_seconds=result.seconds)
    return [
        Reply(task=task, payload=payload, metrics=result.metrics, cost=cost, peer_messages=result.peer_messages)
        for task in tasks
    ]
