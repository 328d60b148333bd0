"""What a learning site can do: train, profile, assess. Each answers for all of the site's invited clients at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from winnow.core import Arrays, Handler, Reply, Task
from winnow.learn.examine import Examiner
from winnow.learn.local import LocalUpdate
from winnow.learn.metrics import METRICS
from winnow.learn.profile import Profile
from winnow.learn.stack import Execution, ModelState, TensorData, train

T = TypeVar("T")

SEED_BYTES = 8
"""Version 0 need not be sent: every party builds it from the broadcast seed."""


@dataclass(frozen=True, kw_only=True)
class LearningSite:
    """A party that hosts clients' data and can run the model on them."""

    data: TensorData
    execution: Execution
    examiner: Examiner
    initial: ModelState
    """The model every party builds from the broadcast seed."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    local: LocalUpdate
    seed: int
    profile: bool


@dataclass(frozen=True, kw_only=True)
class ProfileSettings:
    """Profile the model that came with the task, or the initial one if none came."""


@dataclass(frozen=True, kw_only=True)
class AssessSettings:
    metric: str


def train_clients(tasks: Sequence[Task], site: LearningSite) -> list[Reply]:
    """Local training of the cohort as one stack; where asked, each client first profiles its data."""
    first, clients = tasks[0], _clients(tasks)
    settings, start = _settings(first, TrainSettings), _model(first, site)
    trained = train(site.execution, start, settings.local, site.data, clients, round=first.round, seed=settings.seed)
    profiles = _profiles(site, start, clients) if settings.profile else None
    names, columns = list(trained.states), [stack.unbind(0) for stack in trained.states.values()]
    losses = trained.loss.tolist()
    replies = []
    for i, task in enumerate(tasks):
        payload: dict[str, Arrays] = {"model": {name: column[i] for name, column in zip(names, columns, strict=True)}}
        if profiles is not None:
            payload["profile"] = _arrays(profiles[i])
        replies.append(Reply(task=task, payload=payload, metrics={"loss": losses[i]}))
    return replies


def profile_clients(tasks: Sequence[Task], site: LearningSite) -> list[Reply]:
    """The profiles of clients' data through one model."""
    profiles = _profiles(site, _model(tasks[0], site), _clients(tasks))
    return [
        Reply(task=task, payload={"profile": _arrays(profile)}) for task, profile in zip(tasks, profiles, strict=True)
    ]


def assess_clients(tasks: Sequence[Task], site: LearningSite) -> list[Reply]:
    """Score and profile the model on each client's own data; for clients that hold the reference set."""
    settings, state = _settings(tasks[0], AssessSettings), _model(tasks[0], site)
    replies = []
    for task in tasks:
        rows = _rows(site.data, task.client)
        x, y = site.data.x[rows], site.data.y[rows]
        seen = site.examiner.examine(state, x, y, METRICS[settings.metric](y))
        payload = {"profile": _arrays(seen.profile)} if seen.profile is not None else {}
        replies.append(Reply(task=task, payload=payload, metrics={settings.metric: seen.score, "loss": seen.loss}))
    return replies


HANDLERS: dict[str, Handler[LearningSite]] = {
    "train": train_clients,
    "profile": profile_clients,
    "assess": assess_clients,
}


def profile_of(reply: Reply) -> Profile:
    """The profile that a reply carries."""
    part = reply.payload["profile"]
    return Profile(mean=np.asarray(part["mean"], np.float32), variance=np.asarray(part["variance"], np.float32))


def _arrays(profile: Profile) -> Arrays:
    return {"mean": profile.mean, "variance": profile.variance}


def _clients(tasks: Sequence[Task]) -> NDArray[np.int64]:
    return np.fromiter((task.client for task in tasks), np.int64, len(tasks))


def _model(task: Task, site: LearningSite) -> ModelState:
    return dict(task.payload["model"]) if "model" in task.payload else site.initial


def _settings(task: Task, kind: type[T]) -> T:
    assert isinstance(task.settings, kind)
    return task.settings


def _rows(data: TensorData, client: int) -> torch.Tensor:
    return torch.as_tensor(data.rows[data.offsets[client] : data.offsets[client + 1]])


def _profiles(site: LearningSite, state: ModelState, clients: NDArray[np.int64]) -> list[Profile]:
    rows = torch.cat([_rows(site.data, int(k)) for k in clients])
    sizes = torch.as_tensor(np.diff(site.data.offsets)[clients])
    owner = torch.repeat_interleave(torch.arange(len(clients)), sizes)
    return site.examiner.profiles(state, site.data.x, rows, owner, len(clients))
