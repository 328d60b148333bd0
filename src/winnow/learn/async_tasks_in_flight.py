"""Training tasks that outlast a round: what schedules without common rounds must remember."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from winnow.core import Exchange, Federation, Payload, Snapshot, Task

if TYPE_CHECKING:
    from winnow.learn.training_workflow import TrainingWorkflow


TASKS_PREFIX = "tasks/"
"""Under this name a checkpoint holds the payloads of what is under way."""


@dataclass(frozen=True)
class _SentTask:
    task: Task
    at: float


class PendingTasks:
    """Tasks that have not been answered yet, in the order in which they were sent, and since when."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._of_client: dict[int, _SentTask] = {}

    @classmethod
    def resumed(cls, training: "TrainingWorkflow", federation: Federation, exchange: Exchange) -> "PendingTasks":
        """What an interrupted run had under way is sent again; it has been so since it was first sent."""
        underway, before = cls(exchange), training.schedule_state
        payloads: dict[int, dict[str, dict[str, object]]] = {}
        for path, tensor in before.arrays.items():
            if not path.startswith(TASKS_PREFIX):
                continue
            begun_in, part, name = path.removeprefix(TASKS_PREFIX).split("/", 2)
            payloads.setdefault(int(begun_in), {}).setdefault(part, {})[name] = tensor
        sizes = federation.population.sizes
        for client, number, at in before.values.get("tasks", ()):
            [task] = training.tasks([client], sizes, payload=payloads[number], round=number)
            underway._add([task], at)
        return underway

    def __len__(self) -> int:
        return len(self._of_client)

    def __contains__(self, client: object) -> bool:
        return client in self._of_client

    @property
    def tasks(self) -> list[Task]:
        return [begun.task for begun in self._of_client.values()]

    def oldest(self, present: int) -> int:
        """The oldest version that somebody is at work on."""
        return min((task.version for task in self.tasks), default=present)

    def send(self, training: "TrainingWorkflow", federation: Federation, clients: Sequence[int]) -> None:
        """Have these clients train from the present version."""
        self._add(training.tasks(clients, federation.population.sizes), federation.clock.now)

    def done(self, task: Task) -> None:
        del self._of_client[task.client]

    def cancel(self, clients: Collection[int]) -> None:
        """Have these clients stop."""
        self._exchange.cancel(clients)
        for client in clients:
            del self._of_client[client]

    def snapshot(self) -> Snapshot:
        payloads: dict[int, Payload] = {task.round: task.payload for task in self.tasks}
        return Snapshot(
            arrays={
                f"{TASKS_PREFIX}{number}/{part}/{name}": tensor
                for number, payload in payloads.items()
                for part, named in payload.items()
                for name, tensor in named.items()
            },
            values={"tasks": [(b.task.client, b.task.round, b.at) for b in self._of_client.values()]},
        )

    def _add(self, tasks: Iterable[Task], at: float) -> None:
        tasks = list(tasks)
        self._exchange.send(tasks, since=at)
        self._of_client.update((task.client, _SentTask(task, at)) for task in tasks)
