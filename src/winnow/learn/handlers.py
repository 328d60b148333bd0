"""What a learning site can do: train, profile, evaluate; each for all of the site's selected clients at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from winnow.core import Handler, Payload, Reply, Task
from winnow.core.federation import clients_of
from winnow.learn.client_quality.assess_handler import ASSESS, assess_clients
from winnow.learn.client_quality.reference_source import SUMMARISE_REFERENCE, summarise_reference
from winnow.learn.client_round_method import ClientUpdate, LocalTraining, train_clients
from winnow.learn.learning_site import LearningSite, metrics_by_client, settings_of
from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.model_evaluator import confusion_counts
from winnow.learn.personal_evaluation import personal_models, personal_outputs, scores_by_client
from winnow.learn.profile_by_class import ProfileClasses
from winnow.learn.stack import ModelState

PERSONAL_MODELS_BYTES = 1 << 28
"""So much of personal models is in memory at a time while they are evaluated."""

LOSS_METRICS = frozenset({"start_loss", "start_loss_rms"})
"""What the reply to a loss evaluation may report."""

CONFUSION, COUNTS = "confusion", "counts"
"""The part of a reply that counts which class is taken for which, and its array."""

SEED_BYTES = 8
"""Version 0 need not be sent: every party builds it from the broadcast seed."""


@dataclass(frozen=True, kw_only=True)
class ProfileSettings:
    """Profile the model that came with the task, or the initial one if none came."""

    classes: ProfileClasses | None = None
    """For profiles by class, those classes."""


@dataclass(frozen=True, kw_only=True)
class LossEvaluationSettings:
    """Report the loss of the model that came with the task on the client's samples."""


@dataclass(frozen=True, kw_only=True)
class ReferenceEvaluationSettings:
    metrics: tuple[str, ...]
    profile_classes: ProfileClasses | None = None
    """For a profile by class, those classes."""


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """Before the evaluation, each client trains the model for itself: its own, or the one that came with the task."""

    local: LocalOptimiser
    epochs: int
    seed: int
    own: bool


@dataclass(frozen=True, kw_only=True)
class PersonalEvaluationSettings:
    client: ClientUpdate
    metrics: tuple[str, ...]
    tuning: FineTuning | None = None
    confusion_classes: int = 0
    """Whether to count, for so many classes, which is taken for which."""


def profile_clients(tasks: Sequence[Task], site: LearningSite) -> list[Reply]:
    """The profiles of clients' data through one model."""
    settings, state = settings_of(tasks[0], ProfileSettings), site.model_for(tasks[0])
    blocks = site.data.blocks(clients_of(tasks))
    profiles = (found for clients, data in blocks for found in site.profiles(state, data, clients, settings.classes))
    return [Reply(task=task, payload={"profile": profile}) for task, profile in zip(tasks, profiles, strict=True)]


def evaluate_losses(tasks: Sequence[Task], site: LearningSite) -> list[Reply]:
    """The loss of one model on each client's samples, without training."""
    state, blocks = site.model_for(tasks[0]), site.data.blocks(clients_of(tasks))
    reports = (row for clients, data in blocks for row in metrics_by_client(site.losses(state, data, clients)))
    return [Reply(task=task, metrics=report) for task, report in zip(tasks, reports, strict=True)]


def evaluate_reference(tasks: Sequence[Task], site: LearningSite) -> list[Reply]:
    """Score and profile the model on each client's own data; for clients that hold the reference set."""
    settings, state = settings_of(tasks[0], ReferenceEvaluationSettings), site.model_for(tasks[0])
    replies = []
    for task in tasks:
        data = site.data.cohort(clients_of([task]))
        rows = torch.as_tensor(data.rows_of(task.client))
        x, y = data.x[rows], data.y[rows]
        metrics = [site.metrics[name] for name in settings.metrics]
        seen = site.evaluator.evaluate(state, x, y, metrics, profile_classes=settings.profile_classes)
        payload = {"profile": seen.profile.state()} if seen.profile is not None else {}
        replies.append(Reply(task=task, payload=payload, metrics=seen.metrics))
    return replies


def evaluate_personal(tasks: Sequence[Task], site: LearningSite) -> list[Reply]:
    """Each client scores the model that it uses itself on the samples that it kept for that."""
    state = site.model_for(tasks[0])
    together = max(1, PERSONAL_MODELS_BYTES // sum(tensor.nbytes for tensor in state.values()))
    blocks = (tasks[first : first + together] for first in range(0, len(tasks), together))
    return [reply for block in blocks for reply in _evaluated(block, state, site)]


def _evaluated(tasks: Sequence[Task], state: ModelState, site: LearningSite) -> list[Reply]:
    settings, clients = settings_of(tasks[0], PersonalEvaluationSettings), clients_of(tasks)
    own, tuning = [task.client_state for task in tasks], settings.tuning
    if tuning is None or tuning.own:
        models = personal_models(settings.client, state, own)
    else:
        models = {name: tensor.unsqueeze(0) for name, tensor in state.items()}
    if tuning is not None:
        training = LocalTraining(
            execution=site.execution,
            data=site.data.cohort(clients),
            clients=clients,
            local=tuning.local,
            round=max(1, tasks[0].round),
            seed=tuning.seed,
            randomness=site.randomness,
            sent={"model": state},
            stored=own,
        )
        models = settings.client.fine_tune(training, models, tuning.epochs)
    assert site.local_test is not None
    metrics = [site.metrics[name] for name in settings.metrics]
    outputs, targets = personal_outputs(site.execution, site.evaluator, models, site.local_test, clients)
    sizes = site.local_test.sizes(clients).tolist()
    reports = metrics_by_client(scores_by_client(outputs, targets, sizes, metrics, site.evaluator.loss))
    payloads: list[Payload] = [{} for _ in tasks]
    if settings.confusion_classes:
        apart = zip(torch.split(outputs, sizes), torch.split(targets, sizes), strict=True)
        payloads = [{CONFUSION: {COUNTS: confusion_counts(*each, settings.confusion_classes)}} for each in apart]
    return [
        Reply(task=task, payload=payload, metrics=report)
        for task, payload, report in zip(tasks, payloads, reports, strict=True)
    ]


HANDLERS: dict[str, Handler[LearningSite]] = {
    "train": train_clients,
    "profile": profile_clients,
    "evaluate-loss": evaluate_losses,
    "evaluate-reference": evaluate_reference,
    "evaluate-personal": evaluate_personal,
    ASSESS: assess_clients,
    SUMMARISE_REFERENCE: summarise_reference,
}
