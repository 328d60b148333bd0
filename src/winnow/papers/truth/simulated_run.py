"""Runs of the private protocol, for the figures: with participants who leave, on answers whose truth is known."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.truth.answer_arrays import AnswerArrays
from winnow.analytics.truth.truth_simulation import simulate_participants
from winnow.analytics.truth.truth_terms import agree_on_terms
from winnow.analytics.truth.truth_workflow import TruthDiscovery
from winnow.core import RoundFinished, stream

EVENTS, REPORTED, WORST_ERROR = 96, 0.2, 0.5
"""Figure 6: traffic lights, the share of them that a participant reports, and how often the worst is wrong."""


@dataclass(frozen=True, kw_only=True)
class LeavingRule:
    """What becomes of those who leave; `alpha` belongs to the adaptive update, and is 0 without one."""

    name: str
    dropouts: str
    alpha: float = 0.0


AS_IS = LeavingRule(name="no update", dropouts="adaptive")
ADAPTIVE = tuple(LeavingRule(name=f"α = {alpha}", dropouts="adaptive", alpha=alpha) for alpha in (1, 2, 3))
KEPT = LeavingRule(name="kept shares", dropouts="kept")
RULES = (AS_IS, *ADAPTIVE, KEPT)


def traffic_lights(participants: int, seed: int) -> tuple[AnswerArrays, NDArray[np.int64]]:
    """Answers like those of figure 6 from participants that make errors at rates from U[0, 0.5], and the truth."""
    rng = stream(seed, "truth", "lights", participants)
    truth, wrong = rng.integers(0, 2, EVENTS), rng.uniform(0, WORST_ERROR, participants)
    workers, items = np.nonzero(rng.random((participants, EVENTS)) < REPORTED)
    said = truth[items] ^ (rng.random(len(items)) < wrong[workers])
    answers = AnswerArrays(
        items=items, workers=workers, values=said, item_count=EVENTS, worker_count=participants, classes=2
    )
    return answers, truth


def one_event(participants: int) -> AnswerArrays:
    """All participants answer the same event: what matters is who is there."""
    everybody = np.arange(participants)
    return AnswerArrays(
        items=np.zeros_like(everybody),
        workers=everybody,
        values=everybody % 2,
        item_count=1,
        worker_count=participants,
        classes=2,
    )


def run_with_leavers(
    answers: AnswerArrays,
    rule: LeavingRule,
    *,
    dropout: float,
    seed: int,
    method: str = "logistic",
    threshold: int | None = None,
) -> tuple[TruthDiscovery, list[NDArray[np.int64]]]:
    """The workflow after at most ten iterations, by default with half of the participants as threshold; who was
    there in each iteration that was finished.
    """
    terms = agree_on_terms(
        method=method,
        items=answers.item_count,
        classes=answers.classes,
        participants=answers.worker_count,
        threshold=threshold or answers.worker_count // 2,
        dropouts=rule.dropouts,
        seed=seed,
    )
    workflow = TruthDiscovery(terms, alpha=rule.alpha)
    events = workflow.run(simulate_participants(terms, answers, dropout=dropout, seed=seed))
    return workflow, [event.aggregated for event in events if isinstance(event, RoundFinished)]
