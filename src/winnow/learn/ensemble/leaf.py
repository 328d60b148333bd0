"""A leaf, and what a round of leaves gives: one event of them all, or every client's nearest leaf."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

import numpy as np
from msgspec.structs import replace as replace_struct
from numpy.typing import NDArray

from winnow.core import UNTIL_ALL, AnyEvent, Cost, Federation, Rejected, Reply, RoundFinished, Selected, Task
from winnow.learn.handlers import LossEvaluationSettings
from winnow.learn.stack import ModelState
from winnow.learn.training_workflow import TrainingWorkflow

PRIVACY = "privacy"


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A training on a cluster's clients."""

    name: str
    training: TrainingWorkflow
    members: NDArray[np.int64]


def with_leaves(
    whole: RoundFinished, leaves: Sequence[Leaf], rounds: Sequence[RoundFinished], evaluated_by: str
) -> RoundFinished:
    """The end of a round, with what its leaves' ends tell: their scores, their clients, loss and cost, and the privacy
    of whoever is worst off.
    """
    spent = [event.metrics[PRIVACY] for event in rounds if PRIVACY in event.metrics]
    privacy = {PRIVACY: {name: max(each[name] for each in spent) for name in spent[0]}} if spent else {}
    told = {
        leaf.name: event.metrics[evaluated_by]
        for leaf, event in zip(leaves, rounds, strict=False)
        if len(rounds) == len(leaves) and evaluated_by in event.metrics
    }
    losses = [(event.loss, len(event.aggregated)) for event in rounds if not isnan(event.loss)]
    weight = sum(count for _, count in losses)
    return replace(
        whole,
        metrics={**whole.metrics, **told, **privacy},
        aggregated=np.unique(np.concatenate([event.aggregated for event in rounds])),
        loss=sum(loss * count for loss, count in losses) / weight if weight else float("nan"),
        joules=sum(event.joules for event in rounds),
        cost=Cost.total([event.cost for event in rounds]),
    )


def renumbered(event: AnyEvent, members: NDArray[np.int64]) -> Any:
    """The event with clients by their numbers in the whole federation."""
    if isinstance(event, Selected):
        return replace(event, clients=members[event.clients])
    if isinstance(event, Rejected):
        return replace(event, client=int(members[event.client]))
    return replace(event, aggregated=members[event.aggregated]) if isinstance(event, RoundFinished) else event


def nearest_leaves(leaves: Sequence[Leaf], federation: Federation, round: int) -> NDArray[np.int64]:
    """The leaf whose loss on its samples is least, for every client; who does not answer stays where it is."""
    clients = np.arange(len(federation.population))
    losses = np.full((len(leaves), len(clients)), np.inf)
    for place, leaf in enumerate(leaves):
        losses[place, leaf.members] = np.finfo(np.float64).max
        tasks = _loss_tasks(leaf.training.shared, clients.tolist(), round)
        with federation.dispatch(tasks, UNTIL_ALL) as exchange:
            for outcome in exchange:
                told = outcome.metrics.get("start_loss") if isinstance(outcome, Reply) else None
                if told is not None and np.isfinite(told):
                    losses[place, outcome.task.client] = told
    found: NDArray[np.int64] = losses.argmin(0)
    return found


def _loss_tasks(model: ModelState, clients: Sequence[int], round: int) -> list[Task]:
    payload = {"model": model}
    settings = LossEvaluationSettings()
    first = Task(name="evaluate-loss", client=0, round=round, version=round, payload=payload, settings=settings)
    return [replace_struct(first, client=client) for client in clients]
