"""A selection outside of a run: its context, and clients that answer what a test says they do."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from winnow.core import Cost, Outcome, Population, Reply, Task
from winnow.learn.selection import SelectionContext

MESSAGE_BYTES = 1_000
MODEL = {"weight": torch.zeros(2), "statistics": torch.zeros(1)}


def people(*sizes: int) -> Population:
    return Population(sizes=np.array(sizes, np.int64))


def silent(tasks: Sequence[Task]) -> list[Outcome]:
    """Nobody is asked anything."""
    assert not tasks
    return []


def selection_context(
    round: int, ask: Callable[[Sequence[Task]], list[Outcome]] = silent, seed: int = 0
) -> SelectionContext:
    return SelectionContext(
        round=round,
        version=round - 1,
        oldest_pending_version=round - 1,
        rng=np.random.default_rng([seed, round]),
        model=MODEL,
        reference=None,
        message_bytes=MESSAGE_BYTES,
        trained=("weight",),
        send_tasks=ask,
    )


def valued(
    losses: Mapping[int, float], seconds: Mapping[int, float] | None = None, heard: list[Task] | None = None
) -> Callable[[Sequence[Task]], list[Outcome]]:
    """Clients that tell these losses, after so many seconds; others do not answer. `heard` notes what was asked."""

    def ask(tasks: Sequence[Task]) -> list[Outcome]:
        if heard is not None:
            heard.extend(tasks)
        assert {task.name for task in tasks} <= {"evaluate-loss"}
        return [
            Reply(task=t, metrics={"start_loss": losses[t.client]}, cost=Cost(training_seconds=_of(seconds, t.client)))
            for t in tasks
            if t.client in losses
        ]

    return ask


def trained(
    client: int,
    *,
    round: int = 1,
    seconds: float = 1.0,
    weight: Sequence[float] = (0.0, 0.0),
    sent: Sequence[float] = (0.0, 0.0),
    **metrics: float,
) -> Reply:
    """What a client sends after training from the weights that it was sent."""
    task = Task(name="train", client=client, round=round, version=round - 1, payload={"model": _model(sent)})
    cost = Cost(training_seconds=seconds)
    return Reply(task=task, payload={"model": _model(weight)}, metrics={"loss": 1.0} | metrics, cost=cost)


def _model(weight: Sequence[float]) -> dict[str, torch.Tensor]:
    return {"weight": torch.tensor(weight, dtype=torch.float32), "statistics": torch.full((1,), 99.0)}


def _of(seconds: Mapping[int, float] | None, client: int) -> float:
    return 1.0 if seconds is None else seconds[client]
