"""What a client does in a round, around local training.

A `ClientUpdate` is written once for K clients: tensors have a leading dimension of clients, or of 1 where all share
them. It calls `training.train` as often and from wherever it likes, and returns what is sent and what is kept.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor, nn

from winnow.core import Arrays, Choice, Failure, ModelError, Outcome, Payload, Reply, Task
from winnow.core.federation import clients_of
from winnow.learn.algorithm_part import AlgorithmPart
from winnow.learn.learning_site import LearningSite, metrics_by_client, settings_of
from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.profile_by_class import ProfileClasses
from winnow.learn.pseudo_labels import TOLD_OF_LABELS
from winnow.learn.stack import CohortTrainingResult, LocalTraining, ModelState

__all__ = [  # what a method at the client is written with, and the handler that runs it
    "FINE_TUNING_PHASE",
    "PREDICTIONS",
    "TRAINING_METRICS",
    "ClientUpdate",
    "LocalResult",
    "LocalTraining",
    "PlainUpdate",
    "TrainSettings",
    "train_clients",
]

FINE_TUNING_PHASE = -1
"""The phase of fine-tuning: its batches are in an order of their own."""

PREDICTIONS = "predictions"
"""The part of a reply with probabilities for the open samples, [open, classes]."""

TRAINING_METRICS = frozenset({"loss", "steps", "total_step_size", "start_loss", "start_loss_rms", *TOLD_OF_LABELS})
"""What a training reply may report."""


@dataclass(frozen=True, kw_only=True)
class LocalResult:
    """What K clients send (the model, and other parts if the method has any) and what they keep for the next time."""

    model: ModelState
    """Empty where nothing but `parts` is sent."""
    trained: CohortTrainingResult
    """The training whose loss and number of steps are reported."""
    parts: Mapping[str, ModelState] = field(default_factory=dict)
    keep: Mapping[str, ModelState] = field(default_factory=dict)
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """What is reported besides, [K]."""
    stay_out: Mapping[int, str] = field(default_factory=dict)
    """The places in the cohort of clients that have nothing to send in this round, and why."""


class ClientUpdate(Choice, AlgorithmPart):
    """A method at the client. How many trainings it takes and how many models its reply weighs is said here."""

    training_factor: ClassVar[float] = 1.0
    upload_factor: ClassVar[float] = 1.0
    bounds_samples: ClassVar[bool] = False
    """Whether it needs the gradient of every sample, and so a loss with one value a sample."""
    extra_parts: ClassVar[tuple[str, ...]] = ()
    """The names of the parts that go out beside the model; a reply without one of them is refused."""

    own_steps: ClassVar[bool] = False
    """Whether its steps ask for more than gradients of the run's loss on batches as they are drawn."""
    uses_unlabelled: ClassVar[bool] = False
    """Whether it trains on samples without labels, too; otherwise clients are given their labelled samples alone."""
    labels_at: ClassVar[frozenset[str]] = frozenset({"clients", "some"})
    """Where labels may be (`data.labels`): at all clients, at some clients, at the server."""
    tells_labelled_share: ClassVar[bool] = False
    """Whether clients tell which share of their samples has labels."""
    learns_features: ClassVar[bool] = False
    """Whether it trains all but a model's last layer, which a linear probe then fits at the server."""
    sends_predictions: ClassVar[bool] = False
    """Whether it sends, instead of a model, `PREDICTIONS`: its probabilities for the open samples (`data.open`)."""
    has_personal_model: ClassVar[bool] = False
    """Whether clients use models of their own; whoever overrides `personal_model` says so here."""

    @property
    def label_threshold(self) -> float | None:
        """From which probability on it takes the model's word for a label; None if it never does."""
        return None

    @abstractmethod
    def update(self, training: LocalTraining) -> LocalResult: ...

    def predicted_rows(self, open_rows: int) -> int:
        """Of so many open samples, for how many a reply has predictions, where it `sends_predictions`."""
        return open_rows

    def heads(self, features: int, outputs: int) -> nn.Module | None:
        """Heads that it trains beside the model, on the features before its last layer; see `ExtendedModel`."""
        return None

    def extra_part_shapes(self, model: ModelState) -> Payload:
        """What each of those parts looks like, unless the server sends it out itself under the same name: a reply with
        other names, shapes or types is refused.
        """
        return {}

    def passes(self, local: LocalOptimiser, samples: int) -> float:
        """How often a client with so many samples goes over its data in a round."""
        return self.training_factor * local.passes(samples)

    def private_names(self, module: nn.Module) -> frozenset[str]:
        """The entries of a model's state that stay with each client and are never sent."""
        return frozenset()

    def notice(self, module: nn.Module) -> str:
        """What a user should know about this method on this model; empty where there is nothing."""
        return ""

    def personal_model(self, model: ModelState, kept: Payload) -> ModelState:
        """The model that a client uses itself, given the global one and what the client has kept."""
        return model

    def fine_tune(self, training: LocalTraining, start: ModelState, epochs: int) -> ModelState:
        """What clients make of a model for themselves, to be evaluated: their private part is trained, or else all."""
        private = self.private_names(training.execution.module)
        return training.train(start, trainable=private or None, epochs=epochs, phase=FINE_TUNING_PHASE).states


class PlainUpdate(ClientUpdate):
    """Local training, and nothing else."""

    name: Literal["plain"] = "plain"

    def update(self, training: LocalTraining) -> LocalResult:
        trained = training.train()
        return LocalResult(model=trained.states, trained=trained)


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    local: LocalOptimiser
    client: ClientUpdate
    seed: int
    profile: bool
    start_loss: bool
    """Whether to report the loss of the model as it came, over all of the client's samples."""
    profile_classes: ProfileClasses | None = None
    """For a profile by class, those classes."""


def train_clients(tasks: Sequence[Task], site: LearningSite) -> list[Outcome]:
    """Local training of the cohort as one stack; where asked, each client first profiles its data."""
    if any("model" not in task.payload for task in tasks):
        raise ModelError("the training task contains no model; the server must send one: updates are checked by it")
    first, clients = tasks[0], clients_of(tasks)
    settings, start = settings_of(first, TrainSettings), site.model_for(first)
    data = site.data.cohort(clients)
    training = LocalTraining(
        execution=site.execution,
        data=data,
        clients=clients,
        local=settings.local,
        round=first.round,
        seed=settings.seed,
        randomness=site.randomness,
        sent={**first.payload, "model": start},
        stored=[task.client_state for task in tasks],
        open=site.open,
    )
    update = settings.client.update(training)
    model = {"model": update.model} if update.model else {}
    sent = _by_client({**model, **update.parts}, len(tasks))
    keep = _by_client(update.keep, len(tasks))
    metrics = _training_metrics(update.trained, training) | {n: v.tolist() for n, v in update.metrics.items()}
    if settings.start_loss:
        metrics |= site.losses(start, data, clients)
    if settings.profile:
        profiles = site.profiles(start, data, clients, settings.profile_classes)
        for payload, profile in zip(sent, profiles, strict=True):
            payload["profile"] = profile
    outcomes: list[Outcome] = [
        Reply(task=task, payload=payload, metrics=report, new_client_state=kept)
        for task, payload, report, kept in zip(tasks, sent, metrics_by_client(metrics), keep, strict=True)
    ]
    for place, reason in update.stay_out.items():
        outcomes[place] = Failure(task=tasks[place], stage="training", reason=reason)
    return outcomes


def _training_metrics(trained: CohortTrainingResult, training: LocalTraining) -> dict[str, list[float]]:
    """The loss, the number of steps, and how far they would go along gradients of one."""
    total = training.local.effective_steps(trained.steps) * training.rate
    return {"loss": trained.loss.tolist(), "steps": trained.steps.tolist(), "total_step_size": total.tolist()}


def _by_client(parts: Mapping[str, ModelState], clients: int) -> list[dict[str, Arrays]]:
    """Each client's own of stacked parts."""
    columns = {part: {name: stack.unbind(0) for name, stack in states.items()} for part, states in parts.items()}
    return [
        {part: {name: column[i] for name, column in named.items()} for part, named in columns.items()}
        for i in range(clients)
    ]
