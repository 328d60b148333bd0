"""A deployed task has four forms, and envelopes in between: as docs/architecture.md says, and no more."""

import inspect
import re
import typing
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from winnow.core import Failure, Reply, Task
from winnow.deploy.jobs import ipc_messages
from winnow.deploy.jobs.federation import DeployedFederation
from winnow.deploy.jobs.ipc_messages import DispatchTask, JobSite, ResultArrived, RunTask, TaskResult
from winnow.deploy.jobs.job_clocks import WallClock
from winnow.deploy.jobs.task_executor import SiteHandlers, TaskExecutor
from winnow.deploy.site import state_store
from winnow.deploy.wire import messages
from winnow.deploy.wire.messages import ClientResult, DataDescription, WireTask

ARCHITECTURE = Path(__file__).parents[2] / "docs" / "architecture.md"
STRUCTS = {
    name: each
    for module in (messages, ipc_messages, state_store)
    for name, each in inspect.getmembers(module, inspect.isclass)
    if issubclass(each, msgspec.Struct)
}


def mentions(annotation: Any, wanted: type) -> bool:
    return annotation is wanted or any(mentions(each, wanted) for each in typing.get_args(annotation))


def envelopes(form: type) -> set[str]:
    """The messages with a field of this type."""
    return {
        name
        for name, each in STRUCTS.items()
        if any(mentions(annotation, form) for annotation in typing.get_type_hints(each).values())
    }


def test_the_envelopes_are_those_of_the_documentation() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    tasks, results = zip(*re.findall(r"^\| [\w ]+ \| `(\w+)`: [^|]+ \| `(\w+)`: [^|]+ \|$", text, re.M), strict=True)
    assert envelopes(WireTask) == {*tasks}
    assert envelopes(ClientResult) == {*results, "StoredResult"}
    assert "`StoredResult`" in text


def test_envelopes_are_put_into_others_in_two_places_only() -> None:
    """A site receives instructions in batches; an output filter needs a result and the task that it answers."""
    inner = {*envelopes(WireTask), *envelopes(ClientResult)}
    assert {name for each in inner for name in envelopes(STRUCTS[each])} == {"SiteInstructions", "FilterResult"}


class SitesInThisProcess:
    """In the place of server and agents: what the runner sends is run at once. All that passes is recorded."""

    def __init__(self, executor: TaskExecutor, blobs: Path) -> None:
        self._executor, self._blobs = executor, blobs
        self.dispatched: list[DispatchTask] = []
        self.results: list[TaskResult] = []
        self._arrived: deque[ResultArrived] = deque()

    def send(self, message: Any) -> None:
        assert isinstance(message, DispatchTask)
        self.dispatched.append(message)
        parts = {part: str(self._blobs / blob.digest) for part, blob in message.task.parts.items()}
        for result in self._executor.execute(RunTask(task=message.task, parts=parts)):
            self.results.append(result)
            self._arrived.append(ResultArrived(result=result.result, path=result.payload))

    def receive(self, expected: type, timeout: float | None = None) -> ResultArrived:
        return self._arrived.popleft()


def test_a_task_goes_through_its_four_forms(tmp_path: Path) -> None:
    seen: list[Task] = []

    def double(tasks: list[Task], site: None) -> list[Reply | Failure]:
        seen.extend(tasks)
        return [
            Reply(
                task=task,
                payload={"model": {"w": 2 * np.asarray(task.payload["model"]["w"])}},
                metrics={"loss": 0.5},
                peer_messages={1 - task.client: b"shares"},
            )
            if task.client == 0
            else Failure(task=task, stage="training", reason="no samples")
            for task in tasks
        ]

    (tmp_path / "site").mkdir()
    executor = TaskExecutor("job", tmp_path / "site", SiteHandlers(site=None, handlers={"double": double}))
    sites = SitesInThisProcess(executor, tmp_path / "blobs")
    members = [JobSite(site="a", first_client=0, data=DataDescription(sizes=[5, 5]))]
    federation = DeployedFederation(sites, members, tmp_path, WallClock())
    model = {"w": np.arange(3, dtype=np.float32)}
    asked = [
        Task(name="double", client=client, round=4, version=3, payload={"model": model}, settings={"rate": 0.1})
        for client in (0, 1)
    ]
    with federation.dispatch(asked) as exchange:
        reply, failure = exchange

    (dispatched,) = sites.dispatched
    wire = dispatched.task
    assert (wire.name, wire.clients, wire.round, wire.version) == ("double", [0, 1], 4, 3)
    assert [(task.name, task.client, task.round, task.version, task.settings) for task in seen] == [
        (task.name, task.client, task.round, task.version, task.settings) for task in asked
    ]
    assert all(np.array_equal(task.payload["model"]["w"], model["w"]) for task in seen)
    result, failed = (each.result for each in sites.results)
    assert (result.task, result.client, result.metrics, result.failure) == (wire.id, 0, {"loss": 0.5}, None)
    assert (failed.task, failed.client, failed.stage, failed.failure) == (wire.id, 1, "training", "no samples")
    assert isinstance(reply, Reply)
    assert reply.task is asked[0]
    assert np.array_equal(reply.payload["model"]["w"], 2 * model["w"])
    assert (reply.metrics, reply.peer_messages) == ({"loss": 0.5}, {1: b"shares"})
    assert failure == Failure(task=asked[1], stage="training", reason="no samples")
