"""What came of a training: the model's scores on samples that the server holds, and at each client that has a test."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from winnow.core import Arrays, Payload, Reply, Task
from winnow.core.array_spec import spec_of
from winnow.learn.client_round_method import ClientUpdate
from winnow.learn.evaluation import ServerEvaluator
from winnow.learn.handlers import CONFUSION, COUNTS, PersonalEvaluationSettings
from winnow.learn.metrics import Metric
from winnow.learn.representation_profile import SendTasks
from winnow.learn.stack import ModelState

MAX_CONFUSION_CLASSES = 100
"""More classes are not told apart pair by pair."""
MAX_CLIENTS = 2_000
"""Larger populations are not listed client by client."""
MAX_CLIENT_CELLS = 1_000_000
"""Confusion matrices of all clients together have no more cells."""


@dataclass(frozen=True, kw_only=True)
class SetScores:
    """A model's scores on some samples, and how many of each class (rows) it takes for each class (columns)."""

    samples: int
    metrics: Mapping[str, float]
    confusion: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, kw_only=True)
class FinalEvaluation:
    """The best model's scores. Clients with models of their own score those that they have after the last round."""

    data: str | None
    """Whether the server's samples are the test set or the reference set; None where it holds none."""
    overall: SetScores | None
    by_client: Mapping[int, SetScores]
    notes: tuple[str, ...] = ()
    """What is to be known of the scores: how they were made, and what could not be measured, and why."""


class MakeFinalEvaluation(Protocol):
    def __call__(
        self, best: ModelState, last: ModelState, version: int, round: int, send_tasks: SendTasks
    ) -> FinalEvaluation: ...


@dataclass(frozen=True, kw_only=True)
class FinalEvaluator:
    """Evaluates a training's outcome, once."""

    held: ServerEvaluator | None
    """The server's samples."""
    local_test_sizes: Mapping[int, int]
    """How many samples each client keeps for a test, where it keeps any."""
    client: ClientUpdate
    private: frozenset[str]
    metrics: Sequence[Metric]
    classes: int
    """How many classes there are; 0: it is a regression."""
    note: str = ""
    """What is to be known of all scores."""
    sequences: bool = False
    """Whether targets are sequences: how many positions a client has nobody else knows, so they are not counted."""

    def __call__(
        self, best: ModelState, last: ModelState, version: int, round: int, send_tasks: SendTasks
    ) -> FinalEvaluation:
        clients, notes = self._clients(last if self.client.has_personal_model else best, version, round, send_tasks)
        data, overall = None, None
        if self.held is not None:
            data, seen = self.held.name, self.held.confusion(best, self._confusion_classes)
            overall = SetScores(
                samples=len(self.held.y),
                metrics=seen.metrics,
                confusion=None if seen.confusion is None else seen.confusion.tolist(),
            )
            notes = [*undefined_notes(self.metrics, seen.metrics, self.held.y, f"the {data} set"), *notes]
        told = tuple(filter(None, (self.note, *notes)))
        return FinalEvaluation(data=data, overall=overall, by_client=clients, notes=told)

    @property
    def _confusion_classes(self) -> int:
        return self.classes if self.classes <= MAX_CONFUSION_CLASSES else 0

    def _clients(
        self, model: ModelState, version: int, round: int, send_tasks: SendTasks
    ) -> tuple[dict[int, SetScores], list[str]]:
        sizes, cells = self.local_test_sizes, len(self.local_test_sizes) * self.classes**2
        if len(sizes) > MAX_CLIENTS:
            return {}, [f"{len(sizes):,} clients are too many for a table; up to {MAX_CLIENTS:,} are listed"]
        settings = PersonalEvaluationSettings(
            client=self.client,
            metrics=tuple(metric.name for metric in self.metrics),
            confusion_classes=0 if self.sequences or cells > MAX_CLIENT_CELLS else self._confusion_classes,
        )
        payload: Payload = {"model": {name: tensor for name, tensor in model.items() if name not in self.private}}
        tasks = [
            Task(name="evaluate-personal", client=k, round=round, version=version, payload=payload, settings=settings)
            for k in sizes
        ]
        check = partial(confusion_fault, sizes=sizes, classes=settings.confusion_classes)
        replies = [outcome for outcome in send_tasks(tasks, check) if isinstance(outcome, Reply)] if tasks else []
        found = {
            reply.task.client: SetScores(
                samples=sizes[reply.task.client],
                metrics=dict(reply.metrics),
                confusion=_counts(reply.payload.get(CONFUSION)),
            )
            for reply in replies
        }
        return found, _client_notes(found, len(sizes), counted=settings.confusion_classes > 0)


def confusion_fault(reply: Reply, sizes: Mapping[int, int], classes: int) -> str | None:
    """What is wrong with a client's confusion matrix: whatever is not a count of its samples. None is none."""
    arrays = reply.payload.get(CONFUSION)
    if arrays is None:
        return None
    if arrays.keys() != {COUNTS} or spec_of(arrays, COUNTS) != spec_of({COUNTS: _nothing(classes)}, COUNTS):
        return "the reply's confusion matrix has the wrong shape or type"
    counts, samples = torch.as_tensor(arrays[COUNTS]), sizes[reply.task.client]
    if bool((counts < 0).any()) or bool((counts > samples).any()) or int(counts.sum()) != samples:
        return f"the reply's confusion matrix does not count the client's {samples} samples"
    return None


def undefined_notes(metrics: Sequence[Metric], found: Mapping[str, float], y: Tensor, what: str) -> list[str]:
    """Which metrics have no value on some data, and why where that is known."""
    undefined = [metric for metric in metrics if found[metric.name] != found[metric.name]]
    one_class = not y.is_floating_point() and bool((y == y[:1]).all())
    return [
        f"{metric.name} is undefined on {what}"
        + (", which has one class only" if one_class and metric.needs_two_classes else "")
        for metric in undefined
    ]


def _nothing(classes: int) -> Tensor:
    return torch.zeros(classes, classes, dtype=torch.int64)


def _counts(arrays: Arrays | None) -> list[list[int]] | None:
    return None if arrays is None else torch.as_tensor(arrays[COUNTS]).tolist()


def _client_notes(found: Mapping[int, SetScores], asked: int, *, counted: bool) -> list[str]:
    silent, uncounted = asked - len(found), sum(scores.confusion is None for scores in found.values())
    notes = [f"{silent} of {asked} clients sent no valid scores"] if silent else []
    if counted and uncounted:
        notes.append(
            f"{uncounted} of {asked} clients sent no confusion matrix "
            "(a site's policy must allow it: confusion_matrix = true)"
        )
    return notes
