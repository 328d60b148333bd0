"""The sums of a method as one vector: what some workers add to it, and what the whole of it says."""

import numpy as np

from winnow.analytics.truth.answer_arrays import AnswerArrays, Numbers
from winnow.analytics.truth.truth_methods import TruthEstimate, TruthMethod


def vector_length(method: TruthMethod, items: int, classes: int) -> int:
    """The sums of all items, and the shared ones."""
    return items * method.item_sums(classes) + method.shared_sums


def added_by(method: TruthMethod, answers: AnswerArrays, estimate: TruthEstimate | None) -> Numbers:
    """What the workers of these answers add together; zeros for items that none of them answered."""
    of_answers, of_workers = method.contributions(answers, estimate)
    return np.concatenate([answers.sum_by_item(of_answers).reshape(-1), of_workers.sum(axis=0)])


def estimate_from(method: TruthMethod, total: Numbers, items: int, before: TruthEstimate | None) -> TruthEstimate:
    """What the vector says that all workers add up to."""
    of_items, shared = np.split(total, [len(total) - method.shared_sums])
    return TruthEstimate(confidence=method.confidence(of_items.reshape(items, -1), shared, before), shared=shared)


def discover_plainly(method: TruthMethod, answers: AnswerArrays, iterations: int) -> TruthEstimate:
    """Truth discovery by somebody who sees all answers."""
    estimate = None
    for _ in range(iterations):
        total = added_by(method, answers, estimate)
        estimate = estimate_from(method, total, answers.item_count, estimate)
    assert estimate is not None
    return estimate
