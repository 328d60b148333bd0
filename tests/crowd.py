"""Crowds for tests: made-up ones, and the sets of answers with known truth."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from support.needs import data_set
from winnow.analytics.truth.answer_arrays import AnswerArrays
from winnow.analytics.truth.crowd_answers import CrowdAnswers, read_answers
from winnow.analytics.truth.truth_terms import TruthTerms, agree_on_terms
from winnow.analytics.truth.truth_workflow import TruthDiscovery
from winnow.core import AnyEvent, Outcome, Task
from winnow.simulate import SimulatedFederation

Change = Callable[[Task, Outcome], Outcome]


def made_up(workers: int = 7, items: int = 30, classes: int = 2, share: float = 0.6, seed: int = 0) -> AnswerArrays:
    """Workers of different quality, each of whom answers some items."""
    rng = np.random.default_rng(seed)
    truth, right = rng.integers(0, classes, items), rng.uniform(0.5, 0.95, workers)
    worker, item = np.nonzero(rng.random((workers, items)) < share)
    honest = rng.random(len(item)) < right[worker]
    values = np.where(honest, truth[item], (truth[item] + rng.integers(1, classes, len(item))) % classes)
    return AnswerArrays(
        items=item, workers=worker, values=values, item_count=items, worker_count=workers, classes=classes
    )


def made_up_numbers(workers: int = 6, items: int = 20, seed: int = 0) -> AnswerArrays:
    rng = np.random.default_rng(seed)
    truth, spread = rng.uniform(-0.6, 0.6, items), rng.uniform(0.02, 0.4, workers)
    worker, item = np.nonzero(rng.random((workers, items)) < 0.7)
    values = (truth[item] + spread[worker] * rng.normal(size=len(item))).clip(-1, 1)
    return AnswerArrays(items=item, workers=worker, values=values, item_count=items, worker_count=workers, classes=0)


def crowd_set(folder: Path, name: str) -> tuple[CrowdAnswers, np.ndarray]:
    """A set of `crowd` in the data folder, and the truth of each item."""
    place = data_set(folder, f"crowd/{name}")
    numeric = (place / "answer.csv").exists()
    if numeric:
        crowd = read_answers(place / "answer.csv", item="question", worker="worker", label="answer", numeric=True)
    else:
        crowd = read_answers(place / "label.csv", item="item", worker="worker", label="label")
    with (place / "truth.csv").open() as file:
        known = dict(list(csv.reader(file))[1:])
    truth = [float(known[item]) if numeric else crowd.labels.index(known[item]) for item in crowd.items]
    return crowd, np.array(truth)


def accuracy(by_label: np.ndarray, truth: np.ndarray) -> float:
    """The share of right items; a tie is shared evenly."""
    scores = np.hstack([1 - by_label, by_label]) if by_label.shape[1] == 1 else by_label
    best = scores >= scores.max(axis=1, keepdims=True) - 1e-9
    return float((best[np.arange(len(truth)), truth.astype(int)] / best.sum(axis=1)).mean())


def terms_of(crowd: AnswerArrays, method: str = "logistic", **settings: object) -> TruthTerms:
    return agree_on_terms(
        method=method,
        items=crowd.item_count,
        classes=crowd.classes,
        participants=crowd.worker_count,
        **settings,  # type: ignore[arg-type]
    )


def lying(federation: SimulatedFederation[None], name: str, lie: Change) -> SimulatedFederation[None]:
    """The same federation, in which replies to tasks of this name are changed on their way."""
    honest = federation.handlers[name]

    def handler(tasks: Sequence[Task], site: None) -> list[Outcome]:
        return [lie(task, outcome) for task, outcome in zip(tasks, honest(tasks, site), strict=True)]

    federation.handlers[name] = handler
    return federation


def run(workflow: TruthDiscovery, federation: SimulatedFederation[None]) -> list[AnyEvent]:
    return list(workflow.run(federation))
