"""What a learning site can do: train, profile, value, assess; each for all of the site's invited clients at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from winnow.core import Arrays, Handler, ModelError, Reply, Task
from winnow.learn.client_update import ClientUpdate, LocalTraining
from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.metrics import METRICS
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.personal_evaluation import personal_models, score_personal_models
from winnow.learn.representation_profile import Profile
from winnow.learn.stack import ClientSamples, CohortTrainingResult, Execution, ModelState, TensorData

T = TypeVar("T")

PERSONAL_MODELS_BYTES = 1 << 28
"""So much of clients' own models is in memory at a time while they are judged."""

TRAINING_METRICS = frozenset({"loss", "steps", "total_step_size", "start_loss", "start_loss_rms"})
LOSS_METRICS = frozenset({"start_loss", "start_loss_rms"})
"""What replies may tell of a training, and of a model that was only looked at."""

SEED_BYTES = 8
"""Version 0 need not be sent: every party builds it from the broadcast seed."""


@dataclass(frozen=True, kw_only=True)
class LearningSite:
    """A party that hosts clients' data and can run the model on them."""

    data: ClientSamples
    execution: Execution
    evaluator: ModelEvaluator
    initial: ModelState
    """The model every party builds from the broadcast seed."""
    local_test: TensorData | None = None
    """Samples that clients keep out of their training."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    local: LocalOptimiser
    client: ClientUpdate
    seed: int
    profile: bool
    value: bool
    """Whether to tell the loss of the model as it came, over all of the client's samples."""


@dataclass(frozen=True, kw_only=True)
class ProfileSettings:
    """Profile the model that came with the task, or the initial one if none came."""


@dataclass(frozen=True, kw_only=True)
class LossEvaluationSettings:
    """Tell the loss of the model that came with the task on the client's samples."""


@dataclass(frozen=True, kw_only=True)
class ReferenceEvaluationSettings:
    metric: str


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """Before it is judged, each client trains the model for itself: its own, or the one that came with the task."""

    local: LocalOptimiser
    epochs: int
    seed: int
    own: bool


@dataclass(frozen=True, kw_only=True)
class PersonalEvaluationSettings:
    client: ClientUpdate
    metric: str
    tuning: FineTuning | None = None


def train_clients(tasks: Sequence[Task], site: LearningSite) -> list[Reply]:
    """Local training of the cohort as one stack; where asked, each client first profiles its data."""
    if any("model" not in task.payload for task in tasks):
        raise ModelError("a training task brings no model: what leaves is judged by how it departs from one")
    first, clients = tasks[0], _clients(tasks)
    settings, start = _settings(first, TrainSettings), _model(first, site)
    data = site.data.cohort(clients)
    job = LocalTraining(
        execution=site.execution,
        data=data,
        clients=clients,
        local=settings.local,
        round=first.round,
        seed=settings.seed,
        sent={**first.payload, "model": start},
        stored=[task.client_state for task in tasks],
    )
    update = settings.client.update(job)
    sent, keep = _apart({"model": update.model, **update.parts}, len(tasks)), _apart(update.keep, len(tasks))
    metrics = _training_report(update.trained, job)
    if settings.value:
        metrics |= _values(site.evaluator, start, data, clients)
    reports = _rows_of(metrics)
    if settings.profile:
        for payload, profile in zip(sent, _profiles(site.evaluator, start, data, clients), strict=True):
            payload["profile"] = _arrays(profile)
    return [
        Reply(task=task, payload=payload, metrics=report, new_client_state=kept)
        for task, payload, report, kept in zip(tasks, sent, reports, keep, strict=True)
    ]


def _training_report(trained: CohortTrainingResult, job: LocalTraining) -> dict[str, list[float]]:
    """The loss, the number of steps, and how far they would go along gradients of one."""
    total_step_size = job.local.effective_steps(trained.steps) * job.rate
    return {"loss": trained.loss.tolist(), "steps": trained.steps.tolist(), "total_step_size": total_step_size.tolist()}


def profile_clients(tasks: Sequence[Task], site: LearningSite) -> list[Reply]:
    """The profiles of clients' data through one model."""
    state, blocks = _model(tasks[0], site), site.data.blocks(_clients(tasks))
    profiles = (profile for clients, data in blocks for profile in _profiles(site.evaluator, state, data, clients))
    return [
        Reply(task=task, payload={"profile": _arrays(profile)}) for task, profile in zip(tasks, profiles, strict=True)
    ]


def evaluate_losses(tasks: Sequence[Task], site: LearningSite) -> list[Reply]:
    """The loss of one model on each client's samples, without training."""
    state, blocks = _model(tasks[0], site), site.data.blocks(_clients(tasks))
    reports = (row for clients, data in blocks for row in _rows_of(_values(site.evaluator, state, data, clients)))
    return [Reply(task=task, metrics=report) for task, report in zip(tasks, reports, strict=True)]


def evaluate_reference(tasks: Sequence[Task], site: LearningSite) -> list[Reply]:
    """Score and profile the model on each client's own data; for clients that hold the reference set."""
    settings, state = _settings(tasks[0], ReferenceEvaluationSettings), _model(tasks[0], site)
    replies = []
    for task in tasks:
        data = site.data.cohort(_clients([task]))
        rows = torch.as_tensor(data.rows_of(task.client))
        x, y = data.x[rows], data.y[rows]
        seen = site.evaluator.evaluate(state, x, y, METRICS[settings.metric](y))
        payload = {"profile": _arrays(seen.profile)} if seen.profile is not None else {}
        replies.append(Reply(task=task, payload=payload, metrics={settings.metric: seen.score, "loss": seen.loss}))
    return replies


def evaluate_personal(tasks: Sequence[Task], site: LearningSite) -> list[Reply]:
    """Each client scores the model that it uses itself on the samples that it kept for that."""
    state = _model(tasks[0], site)
    together = max(1, PERSONAL_MODELS_BYTES // sum(tensor.nbytes for tensor in state.values()))
    blocks = (tasks[first : first + together] for first in range(0, len(tasks), together))
    return [reply for block in blocks for reply in _judged(block, state, site)]


def _judged(tasks: Sequence[Task], state: ModelState, site: LearningSite) -> list[Reply]:
    settings, clients = _settings(tasks[0], PersonalEvaluationSettings), _clients(tasks)
    own, tuning = [task.client_state for task in tasks], settings.tuning
    if tuning is None or tuning.own:
        models = personal_models(settings.client, state, own)
    else:
        models = {name: tensor.unsqueeze(0) for name, tensor in state.items()}
    if tuning is not None:
        job = LocalTraining(
            execution=site.execution,
            data=site.data.cohort(clients),
            clients=clients,
            local=tuning.local,
            round=max(1, tasks[0].round),
            seed=tuning.seed,
            sent={"model": state},
            stored=own,
        )
        models = settings.client.fine_tune(job, models, tuning.epochs)
    assert site.local_test is not None
    seen = score_personal_models(site.execution, site.evaluator, models, site.local_test, clients, settings.metric)
    reports = _rows_of({settings.metric: seen.score.tolist(), "loss": seen.loss.tolist()})
    return [Reply(task=task, metrics=report) for task, report in zip(tasks, reports, strict=True)]


HANDLERS: dict[str, Handler[LearningSite]] = {
    "train": train_clients,
    "profile": profile_clients,
    "evaluate-loss": evaluate_losses,
    "evaluate-reference": evaluate_reference,
    "evaluate-personal": evaluate_personal,
}


def _arrays(profile: Profile) -> Arrays:
    return {"mean": profile.mean, "variance": profile.variance}


def _clients(tasks: Sequence[Task]) -> NDArray[np.int64]:
    return np.fromiter((task.client for task in tasks), np.int64, len(tasks))


def _model(task: Task, site: LearningSite) -> ModelState:
    """The model that came with the task; what is not sent (a private part, version 0) is as every party builds it."""
    return site.initial | dict(task.payload["model"]) if "model" in task.payload else site.initial


def _settings(task: Task, kind: type[T]) -> T:
    assert isinstance(task.settings, kind)
    return task.settings


def _apart(parts: Mapping[str, ModelState], clients: int) -> list[dict[str, Arrays]]:
    """Each client's own of stacked parts."""
    columns = {part: {name: stack.unbind(0) for name, stack in states.items()} for part, states in parts.items()}
    return [
        {part: {name: column[i] for name, column in named.items()} for part, named in columns.items()}
        for i in range(clients)
    ]


def _rows_of(columns: Mapping[str, list[float]]) -> list[dict[str, float]]:
    """Each client's own of named columns."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _values(
    evaluator: ModelEvaluator, state: ModelState, data: TensorData, clients: NDArray[np.int64]
) -> dict[str, list[float]]:
    rows, owner = _samples(data, clients)
    mean, rms = evaluator.losses(state, data.x, data.y, rows, owner, len(clients))
    return {"start_loss": mean.tolist(), "start_loss_rms": rms.tolist()}


def _profiles(
    evaluator: ModelEvaluator, state: ModelState, data: TensorData, clients: NDArray[np.int64]
) -> list[Profile]:
    rows, owner = _samples(data, clients)
    return evaluator.profiles(state, data.x, rows, owner, len(clients))


def _samples(data: TensorData, clients: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of these clients, one client after another, and the place of each row's client."""
    rows = torch.as_tensor(np.concatenate([data.rows_of(k) for k in clients.tolist()]))
    owner = torch.repeat_interleave(torch.arange(len(clients)), torch.as_tensor(data.sizes(clients)))
    return rows, owner
