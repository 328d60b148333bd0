"""What the private protocol finds where participants leave, worked out without shares.

Shares change no sum and take a hundred times as long: accuracy over many runs is found here, with the rounding of fixed
point, and tests hold the protocol to it.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.truth.answer_arrays import AnswerArrays, Numbers
from winnow.analytics.truth.truth_methods import METHODS, TruthEstimate
from winnow.analytics.truth.truth_terms import KEPT as KEPT_VECTORS
from winnow.analytics.truth.vector_shares import bits_behind_point
from winnow.core import stream
from winnow.papers.truth.simulated_run import LeavingRule

Present = NDArray[np.bool_]
"""Who is there in an iteration, by participant."""
ITERATIONS = 10


def sums_with_leavers(
    answers: AnswerArrays, rule: LeavingRule, present: Iterable[Present], method: str = "logistic"
) -> Iterator[tuple[Numbers, TruthEstimate]]:
    """The sums that each iteration opens, a row an item, and what they say; for methods whose sums are all of items."""
    way, estimate = METHODS[method], None
    added = np.zeros((len(answers.items), way.item_sums(answers.classes)))
    nothing, unit = np.zeros(way.shared_sums), 0.5 ** bits_behind_point(answers.worker_count, way.bound)
    for there in present:
        now = there[answers.workers][:, None]
        left_behind = added if rule.dropouts == KEPT_VECTORS else np.zeros_like(added)
        added = np.where(now, np.rint(way.contributions(answers, estimate)[0] / unit) * unit, left_behind)
        sums = answers.sum_by_item(added)
        found = way.confidence(sums, nothing, estimate)
        if rule.dropouts != KEPT_VECTORS and estimate is not None:
            weight = there.mean() ** rule.alpha  # equations 27 and 28
            found = weight * found + (1 - weight) * estimate.confidence
        estimate = TruthEstimate(confidence=found, shared=nothing)
        yield sums, estimate


def estimate_with_leavers(
    answers: AnswerArrays, rule: LeavingRule, *, dropout: float, seed: int, method: str = "logistic"
) -> Numbers:
    """The confidences after at most ten iterations, each of which a participant reaches with probability 1 − dropout;
    a run ends when fewer than half of the participants are there. One half where no sum was opened at all.
    """
    found = np.full((answers.item_count, METHODS[method].columns(answers.classes)), 0.5)
    present = presence(answers.worker_count, dropout, seed)
    for _, estimate in sums_with_leavers(answers, rule, present, method):
        found = estimate.confidence
    return found


def presence(participants: int, dropout: float, seed: int) -> list[Present]:
    """Who is there in each iteration in which enough are, if they leave for good."""
    reached = np.full(participants, ITERATIONS + 1)
    if dropout:
        reached = stream(seed, "truth", "leavers", participants).geometric(dropout, participants)
    rounds = (reached > number for number in range(1, ITERATIONS + 1))
    return [there for there in rounds if there.sum() >= participants // 2]
