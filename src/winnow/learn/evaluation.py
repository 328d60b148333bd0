"""Who evaluates a model, and on what data.

Every version is scored on the reference set, which sits at the server or with one or several named clients, and on a
disjoint test set at the server. The same pass gives the reference profile of that version.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from torch import Tensor

from winnow.core import Payload, Reply, Task, Work
from winnow.learn.client_store import ClientStore
from winnow.learn.handlers import SEED_BYTES, PersonalEvaluationSettings, ReferenceEvaluationSettings
from winnow.learn.metrics import Metric
from winnow.learn.model_evaluator import DataSetEvaluation, ModelEvaluator
from winnow.learn.profile_by_class import ProfileClasses
from winnow.learn.profile_comparison import ReferenceProfileBuilder
from winnow.learn.representation_profile import ReferenceProfile, SendTasks
from winnow.learn.stack import ModelState


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores by data set, and the reference profile if one is needed."""

    metrics: dict[str, dict[str, float]]
    profile: ReferenceProfile | None
    fitted: ModelState = field(default_factory=dict)
    """Parameters that were fitted to evaluate the model, and belong to it where it is kept as the best."""


class Evaluator(Protocol):
    """Whoever holds samples to evaluate on: the reference set, or others."""

    def evaluate(self, state: ModelState, version: int, round: int, send_tasks: SendTasks) -> Evaluation: ...


class ServerEvaluator:
    """Examples that the server holds itself: a reference set or a test set."""

    def __init__(
        self,
        name: str,
        evaluator: ModelEvaluator,
        examples: tuple[Tensor, Tensor],
        metrics: Sequence[Metric],
        profile_classes: ProfileClasses | None = None,
    ) -> None:
        self.name, self._evaluator, self.metrics, self._classes = name, evaluator, metrics, profile_classes
        self.x, self.y = examples

    def evaluate(self, state: ModelState, version: int, round: int, send_tasks: SendTasks) -> Evaluation:
        seen = self._evaluator.evaluate(state, self.x, self.y, self.metrics, profile_classes=self._classes)
        return Evaluation(metrics={self.name: seen.metrics}, profile=seen.profile)

    @property
    def profiles(self) -> bool:
        """Whether an evaluation gives a profile."""
        return self._evaluator.watches_layer

    def confusion(self, state: ModelState, classes: int) -> DataSetEvaluation:
        """The scores of a model, and which of so many classes it takes for which; none counted for 0 classes."""
        return self._evaluator.evaluate(state, self.x, self.y, self.metrics, classes)


class ReferenceClientsEvaluator:
    """The reference set is the data of some clients: they score and profile each version, the server only pools.

    The exchange costs them a download of the model (of the seed for version 0), one pass over their data and the upload
    of a profile. A version that none of them scores has no scores and no reference profile.
    """

    def __init__(
        self,
        size_of: Mapping[int, int],
        builder: ReferenceProfileBuilder,
        *,
        private: frozenset[str],
        metrics: Sequence[Metric],
        message_bytes: int,
        profile_bytes: int,
        profile_classes: ProfileClasses | None,
    ) -> None:
        self._profile_classes = profile_classes
        self._size, self._builder, self._private, self._metrics = size_of, builder, private, metrics
        self._message_bytes, self._profile_bytes = message_bytes, profile_bytes

    def evaluate(self, state: ModelState, version: int, round: int, send_tasks: SendTasks) -> Evaluation:
        self._builder.prepare(send_tasks)
        outcomes = send_tasks(self._tasks(state, version, round), self._fault)
        replies = [outcome for outcome in outcomes if isinstance(outcome, Reply)]
        if not replies:
            return Evaluation(metrics={}, profile=None)
        counts = [self._size[reply.task.client] for reply in replies]
        pooled = {
            each.name: each.pooled([reply.metrics[each.name] for reply in replies], counts) for each in self._metrics
        }
        losses = [reply.metrics["loss"] for reply in replies]
        scores = {**pooled, "loss": float(np.average(losses, weights=counts))}
        profile = self._builder.reference(replies, counts) if self._profile_bytes else None
        return Evaluation(metrics={"reference": scores}, profile=profile)

    def _fault(self, reply: Reply) -> str | None:
        if not self._profile_bytes:
            return None
        return self._builder.fault(reply.payload["profile"], self._size[reply.task.client])

    def _tasks(self, state: ModelState, version: int, round: int) -> list[Task]:
        seeded = version == 0
        work = Work(
            profiling_passes=1 if self._profile_bytes else 0,
            download_bytes=SEED_BYTES if seeded else self._message_bytes,
            profile_bytes=self._profile_bytes,
        )
        settings = ReferenceEvaluationSettings(
            metrics=tuple(each.name for each in self._metrics), profile_classes=self._profile_classes
        )
        payload: Payload = {} if seeded else {"model": _without(state, self._private)}
        return [
            Task(
                name="evaluate-reference",
                client=k,
                round=round,
                version=version,
                payload=payload,
                settings=settings,
                work=work,
            )
            for k in self._size
        ]


class PersonalEvaluator:
    """Every client evaluates its own model on its local test set. Nobody is charged: it is a measurement.

    The score is the mean over clients, whatever their sizes; its spread (the standard deviation) and the lowest and
    highest deciles show how fair the outcome is.
    """

    def __init__(self, clients: Sequence[int], settings: PersonalEvaluationSettings, private: frozenset[str]) -> None:
        self._clients, self._settings, self._private = clients, settings, private

    def evaluate(self, state: ModelState, version: int, round: int, send_tasks: SendTasks) -> Evaluation:
        found = _client_scores(
            self._clients, _without(state, self._private), self._settings, version, round, send_tasks
        )
        return Evaluation(metrics={"clients": found} if found else {}, profile=None)


class FineTunedEvaluator:
    """Every few rounds each client fine-tunes a model and evaluates the result.

    It starts from its own model or, with `from_average`, from the global one with the mean of the clients' private
    parts, which only a simulation can read from its store.
    """

    def __init__(
        self,
        clients: Sequence[int],
        settings: PersonalEvaluationSettings,
        private: frozenset[str],
        *,
        every: int,
        from_average: ClientStore | None,
    ) -> None:
        self._clients, self._settings, self._private = clients, settings, private
        self._every, self._from_average = every, from_average

    def evaluate(self, state: ModelState, version: int, round: int, send_tasks: SendTasks) -> Evaluation:
        if round % self._every:
            return Evaluation(metrics={}, profile=None)
        if self._from_average is None:
            model = _without(state, self._private)
        else:
            model = self._settings.client.personal_model(state, self._from_average.mean())
        found = _client_scores(self._clients, model, self._settings, version, round, send_tasks)
        return Evaluation(metrics={"tuned": found} if found else {}, profile=None)


def _without(state: ModelState, private: frozenset[str]) -> ModelState:
    return {name: tensor for name, tensor in state.items() if name not in private}


def _client_scores(
    clients: Sequence[int],
    model: ModelState,
    settings: PersonalEvaluationSettings,
    version: int,
    round: int,
    send_tasks: SendTasks,
) -> dict[str, float]:
    """The clients' scores, summarised; empty where nobody answers."""
    payload: Payload = {"model": model}
    tasks = [
        Task(name="evaluate-personal", client=k, round=round, version=version, payload=payload, settings=settings)
        for k in clients
    ]
    replies = [outcome for outcome in send_tasks(tasks) if isinstance(outcome, Reply)]
    if not replies:
        return {}
    metric = settings.metrics[0]
    scores = np.array([reply.metrics[metric] for reply in replies])
    scores = scores[~np.isnan(scores)]  # a metric may be undefined for some: samples of one class have no AUC
    if not len(scores):
        return {}
    return {
        metric: float(scores.mean()),
        "loss": float(np.mean([reply.metrics["loss"] for reply in replies])),
        "spread": float(scores.std()),
        "lowest_decile": float(np.quantile(scores, 0.1)),
        "highest_decile": float(np.quantile(scores, 0.9)),
    }


class CombinedEvaluator:
    """The reference set and, where given, a test set and the clients themselves."""

    def __init__(self, reference: Evaluator, *others: Evaluator) -> None:
        self._reference, self._others = reference, others

    def evaluate(self, state: ModelState, version: int, round: int, send_tasks: SendTasks) -> Evaluation:
        evaluation = self._reference.evaluate(state, version, round, send_tasks)
        metrics = dict(evaluation.metrics)
        for other in self._others:
            metrics |= other.evaluate(state, version, round, send_tasks).metrics
        return Evaluation(metrics=metrics, profile=evaluation.profile, fitted=evaluation.fitted)
