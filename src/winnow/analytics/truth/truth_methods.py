"""Methods of truth discovery, each as sums over workers: so they run in the clear and on secret shares alike.

What a worker adds to the sums follows from its own answers and from the last estimate, which is public.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import log
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.truth.answer_arrays import AnswerArrays, Numbers
from winnow.core import ConfigError, suggest

START_TRUST = 0.9
CLIP = 1e-3
"""Trust is kept in [CLIP, 1 − CLIP] where its logarithm is taken, which would be infinite at 1."""
MIN_ERROR = 1e-6
"""The least mean squared error that CRH counts, of answers in [−1, 1]."""
SMOOTHING = 0.01
"""Answers that Dawid–Skene adds to every cell of a confusion matrix."""
MAX_CELLS = 50_000_000
"""Of all confusion matrices."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TruthEstimate:
    """What is known of all items: a row of confidences each; and the sums that belong to no item."""

    confidence: Numbers
    shared: Numbers


class TruthMethod(ABC):
    """How much a worker adds to the sums, and what the sums say."""

    name: ClassVar[str]
    shared_sums: ClassVar[int] = 0
    """Sums beside those of the items."""
    bound: ClassVar[float] = 1.0
    """No worker adds more than this to a sum, in size."""
    least_confidence: ClassVar[float] = 0.0
    """Confidences are between this and 1."""
    largest_trust: ClassVar[float] = 1.0
    """No answers give more."""
    iterations: ClassVar[int] = 10
    """After so many, labels have long stopped changing."""

    def columns(self, classes: int) -> int:
        """Confidences of an item: one for two classes, else one for each class."""
        return 1 if classes == 2 else classes

    @abstractmethod
    def item_sums(self, classes: int) -> int:
        """Sums of each item."""

    @abstractmethod
    def trust(self, answers: AnswerArrays, estimate: TruthEstimate | None) -> Numbers:
        """How far each worker is to be trusted."""

    @abstractmethod
    def contributions(self, answers: AnswerArrays, estimate: TruthEstimate | None) -> tuple[Numbers, Numbers]:
        """What each answer adds to the sums of its item, and each worker to the shared ones."""

    @abstractmethod
    def confidence(self, sums: Numbers, shared: Numbers, before: TruthEstimate | None) -> Numbers:
        """What the sums say of each item."""


class _Voting(TruthMethod):
    """Binary events, one a class where there are more than two."""

    def trust(self, answers: AnswerArrays, estimate: TruthEstimate | None) -> Numbers:
        """τ_i = [Σ_{E_i1} ρ_j + Σ_{E_i0} (1 − ρ_j)] / (|E_i1| + |E_i0|) (equation 13)."""
        if estimate is None:
            return np.full(answers.worker_count, START_TRUST)
        of_item = estimate.confidence[answers.items]
        said = _events(answers)
        return answers.mean_by_worker(np.where(said, of_item, 1 - of_item).mean(axis=1), START_TRUST)


class SumMethod(_Voting):
    """ρ_j = Σ_{i∈U_j1} τ_i / Σ_{i∈U_j} τ_i (equation 12)."""

    name = "sum"

    def item_sums(self, classes: int) -> int:
        return self.columns(classes) + 1

    def contributions(self, answers: AnswerArrays, estimate: TruthEstimate | None) -> tuple[Numbers, Numbers]:
        trust = self.trust(answers, estimate)[answers.workers, None]
        return np.hstack([_events(answers) * trust, trust]), np.zeros((answers.worker_count, 0))

    def confidence(self, sums: Numbers, shared: Numbers, before: TruthEstimate | None) -> Numbers:
        weight = sums[:, -1:]
        return np.where(weight > 0, sums[:, :-1] / np.where(weight > 0, weight, 1), 0.5).clip(0, 1)


class LogisticMethod(_Voting):
    """ρ_j = 1/(1 + exp(−Σ ±τ*_i)) with τ*_i = −ln(1 − τ_i) (equations 15, 18, 19)."""

    name = "logistic"
    bound = -log(CLIP)

    def item_sums(self, classes: int) -> int:
        return self.columns(classes)

    def contributions(self, answers: AnswerArrays, estimate: TruthEstimate | None) -> tuple[Numbers, Numbers]:
        trust = self.trust(answers, estimate).clip(CLIP, 1 - CLIP)
        weight = -np.log1p(-trust)[answers.workers, None]
        return np.where(_events(answers), weight, -weight), np.zeros((answers.worker_count, 0))

    def confidence(self, sums: Numbers, shared: Numbers, before: TruthEstimate | None) -> Numbers:
        logistic: Numbers = 1 / (1 + np.exp(-sums.clip(-700, 700)))
        return logistic


class DawidSkeneMethod(TruthMethod):
    """A confusion matrix for each worker, found by expectation maximisation (Dawid and Skene, 1979).

    The logarithm of an item's posterior is a sum over workers, so it can be a secret one; each worker finds its own
    matrix from the posteriors.
    """

    name = "dawid-skene"
    bound = -log(CLIP)
    iterations = 20

    def columns(self, classes: int) -> int:
        return classes

    def item_sums(self, classes: int) -> int:
        return classes

    def trust(self, answers: AnswerArrays, estimate: TruthEstimate | None) -> Numbers:
        """How often the worker's answer is right: Σ_k P(k) π_kk."""
        right = np.diagonal(self._confusion(answers, estimate), axis1=1, axis2=2)
        return right @ _prior(estimate, answers.classes)

    def contributions(self, answers: AnswerArrays, estimate: TruthEstimate | None) -> tuple[Numbers, Numbers]:
        logarithms = np.log(self._confusion(answers, estimate))
        return logarithms[answers.workers, :, answers.labels], np.zeros((answers.worker_count, 0))

    def confidence(self, sums: Numbers, shared: Numbers, before: TruthEstimate | None) -> Numbers:
        posterior = sums + np.log(_prior(before, sums.shape[1]))
        likely = np.exp(posterior - posterior.max(axis=1, keepdims=True))
        result: Numbers = likely / likely.sum(axis=1, keepdims=True)
        return result

    def _confusion(self, answers: AnswerArrays, estimate: TruthEstimate | None) -> Numbers:
        """π[worker, truth, answer]."""
        k = answers.classes
        if answers.worker_count * k * k > MAX_CELLS:
            raise ConfigError(
                f"{k:,} labels are too many for dawid-skene, which has a cell for each two; take logistic"
            )
        if estimate is None:
            alike = np.where(np.eye(k, dtype=bool), START_TRUST, (1 - START_TRUST) / (k - 1))
            return np.tile(alike, (answers.worker_count, 1, 1))
        counts = np.full((answers.worker_count, k, k), SMOOTHING)  # [worker, answer, truth]
        np.add.at(counts, (answers.workers, answers.labels), estimate.confidence[answers.items])
        matrix: Numbers = (counts / counts.sum(axis=1, keepdims=True)).clip(CLIP, 1).transpose(0, 2, 1)
        return matrix


class CrhMethod(TruthMethod):
    """Numbers: ρ_j = Σ τ_i x_ij / Σ τ_i with τ_i = log Σ_u err_u − log err_i (equations 35 and 36).

    Workers add log err_i rather than τ_i: with Σ_u err_u, which comes by the same sums, the rest follows.
    """

    name = "crh"
    shared_sums = 1
    bound = -log(MIN_ERROR)
    least_confidence = -1.0
    largest_trust = 32.0

    def columns(self, classes: int) -> int:
        return 1

    def item_sums(self, classes: int) -> int:
        return 4

    def trust(self, answers: AnswerArrays, estimate: TruthEstimate | None) -> Numbers:
        total = estimate.shared[0] if estimate is not None else answers.worker_count
        trust: Numbers = log(max(total, MIN_ERROR)) - np.log(self._errors(answers, estimate))
        return trust

    def contributions(self, answers: AnswerArrays, estimate: TruthEstimate | None) -> tuple[Numbers, Numbers]:
        errors = self._errors(answers, estimate)
        logarithm, x = np.log(errors)[answers.workers], answers.values
        return np.column_stack([x, np.ones(len(x)), logarithm * x, logarithm]), errors[:, None]

    def confidence(self, sums: Numbers, shared: Numbers, before: TruthEstimate | None) -> Numbers:
        x, answered, logarithm_x, logarithm = sums.T
        total = log(max(shared[0], MIN_ERROR))
        weight = total * answered - logarithm
        known = weight > 1e-3
        mean = x / np.where(answered > 0.5, answered, 1)
        value = np.where(known, (total * x - logarithm_x) / np.where(known, weight, 1), mean)
        column: Numbers = value.clip(-1, 1)[:, None]
        return column

    def _errors(self, answers: AnswerArrays, estimate: TruthEstimate | None) -> Numbers:
        """Each worker's mean squared error over its own items; all alike in the beginning."""
        if estimate is None:
            return np.ones(answers.worker_count)
        squares = (answers.values - estimate.confidence[answers.items, 0]) ** 2
        return answers.mean_by_worker(squares, 1.0).clip(MIN_ERROR)


METHODS: dict[str, TruthMethod] = {
    method.name: method for method in (LogisticMethod(), SumMethod(), DawidSkeneMethod(), CrhMethod())
}
DEFAULT_METHOD = LogisticMethod.name
NUMERIC_METHOD = CrhMethod.name


def method_named(name: str) -> TruthMethod:
    if name not in METHODS:
        raise ConfigError(f"there is no method {name!r}; {suggest(name, list(METHODS))}")
    return METHODS[name]


def _events(answers: AnswerArrays) -> NDArray[np.bool_]:
    """Which events each answer says are true: one event for two classes, else one a class."""
    if answers.classes == 2:
        return np.asarray(answers.labels[:, None] == 1)
    return np.asarray(answers.labels[:, None] == np.arange(answers.classes))


def _prior(estimate: TruthEstimate | None, classes: int) -> Numbers:
    """How frequent each class is."""
    if estimate is None:
        return np.full(classes, 1 / classes)
    frequent = estimate.confidence.mean(axis=0).clip(CLIP)
    prior: Numbers = frequent / frequent.sum()
    return prior
