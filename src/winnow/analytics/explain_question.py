"""What a question means for those whose rows it is about: its steps, who learns what, and what it costs."""

from dataclasses import dataclass
from math import ceil, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Compare, Step, Sum, opened_length
from winnow.analytics.question import MergedTerms, Question
from winnow.core import WinnowError
from winnow.privacy.concentrated_privacy import epsilon_of

LIKELY_COUNT = 1 << 12
"""What sums are taken to open: the sizes of later steps hardly depend on it."""
MAX_STEPS = 100
BATCH = 1_000
"""Comparisons that are made at a time."""


@dataclass(frozen=True, kw_only=True)
class QuestionExplanation:
    """In sentences. Sizes are the most that they can be: what is hidden or empty makes them smaller."""

    title: str
    steps: tuple[str, ...]
    learns: dict[str, tuple[str, ...]]
    cost: str
    complete: bool
    """False where later steps depend on what is opened."""


def explain_question(question: Question, terms: MergedTerms) -> QuestionExplanation:
    steps, complete = _likely_steps(question, terms)
    computing = _computing(len(terms.owners))
    exchanges = sum(_exchanges(step) for step in steps)
    sent = sum(_bytes(step, len(terms.owners), computing) for step in steps)
    return QuestionExplanation(
        title=f"{question.kind} of {question.table}",
        steps=tuple(_sentence(step, question, len(terms.owners)) for step in steps),
        learns=_learns(question, terms, steps),
        cost=f"{len(steps)} steps, about {exchanges:,} exchanges, and {sent / 1e6:,.2f} MB that each owner sends",
        complete=complete,
    )


def _likely_steps(question: Question, terms: MergedTerms) -> tuple[list[Step], bool]:
    """The steps if every cell has rows enough; as far as that can be told without any rows."""
    steps, program = list[Step](), question.program(terms)
    try:
        step = next(program)
        while len(steps) < MAX_STEPS:
            steps.append(step)
            step = program.send(_likely(step, len(terms.owners)))
    except StopIteration:
        return steps, True
    except (WinnowError, ArithmeticError, np.linalg.LinAlgError, ValueError):
        pass
    return steps, False


def _likely(step: Step, owners: int) -> NDArray[Any]:
    length = opened_length(step, owners)
    return np.ones(length, bool) if isinstance(step, Compare) else np.full(length, LIKELY_COUNT, object)


def _sentence(step: Step, question: Question, owners: int) -> str:
    size = opened_length(step, owners)
    if isinstance(step, Compare):
        return f"{step.label}: compare {size:,} sums in shares; of each, only yes or no is opened"
    if isinstance(step, Sum):
        noise = (
            ""
            if step.noise is None
            else f", with noise that costs ε = {epsilon_of(step.noise.rho, question.delta):.3g}"
        )
        whose = "each owner's" if step.per_owner else "the sum over all owners of"
        return f"{step.label}: open {whose} {size:,} numbers{noise}"
    return f"{step.label}: match identifiers without showing any that is not common"


def _learns(question: Question, terms: MergedTerms, steps: list[Step]) -> dict[str, tuple[str, ...]]:
    told = ["who asks, the question, and everything that a step opens, which includes the answer"]
    if any(isinstance(step, Compare) for step in steps):
        told.append(f"which counts are below {terms.minimum}, and which of those are 0: not how large they are")
    if any(step.per_owner for step in steps if isinstance(step, Sum)):
        told.append("the numbers of each owner, as all of them allow that")
    whose = f"nothing else, unless {_coalition(len(terms.owners))}"
    return {"everybody: who asks, the owners, the server": tuple(told), "each of them besides": (whose,)}


def _coalition(owners: int) -> str:
    if owners == 1:
        return "it is the only owner: nothing is shared"
    if owners == 2:
        return "the third party that computes (a helper site, else the server) and one owner pool what they see"
    computing = _computing(owners)
    return f"{(computing - 1) // 2 + 1} of the {computing} owners that compute pool what they see"


def _computing(owners: int) -> int:
    return 3 if owners <= 2 else owners if owners <= 7 else 5


def _exchanges(step: Step) -> int:
    """A sum is shared and opened; a comparison goes over a tree of its bits."""
    if isinstance(step, Compare):
        return (5 + ceil(log2(step.bits + 2))) * -(-step.length // BATCH)
    return 2


def _bytes(step: Step, owners: int, computing: int) -> int:
    """As measured: 18 bytes for a number of 62 bits, and for a comparison of n bits 90 + 20·n, to each other party."""
    each = 90 + 20 * step.bits if isinstance(step, Compare) else 18
    return each * opened_length(step, owners) * (computing - 1)
