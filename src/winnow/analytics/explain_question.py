"""What a question means for those whose rows it is about: its steps, who learns what, and what it costs."""

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import (
    Compare,
    CountDistinct,
    Match,
    Mix,
    PartyProtocol,
    Product,
    Step,
    Sum,
    SumChain,
    opened_length,
    thresholds_of,
)
from winnow.analytics.question import MergedTerms, Question
from winnow.analytics.step_costs import computing_parties, costs_of
from winnow.core import WinnowError
from winnow.core.join_names import counted, listed
from winnow.privacy.concentrated_privacy import epsilon_of

LIKELY_COUNT = 1 << 12
"""What sums are taken to open: the sizes of later steps hardly depend on it."""
MAX_STEPS = 100


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
    steps, complete = likely_steps(question, terms)
    costs = costs_of(steps, len(terms.owners))
    return QuestionExplanation(
        title=f"{question.kind} of {question.table}",
        steps=_sentences(steps, question, len(terms.owners)),
        learns=_learns(question, terms, steps),
        cost=f"{counted(len(steps), 'step')}, about {costs.text()} in all" + _key_text(steps),
        complete=complete,
    )


def _key_text(steps: list[Step]) -> str:
    return ", and 96 bytes for each key" if any(isinstance(step, Match) for step in steps) else ""


def likely_steps(question: Question, terms: MergedTerms) -> tuple[list[Step], bool]:
    """The steps if every cell has rows enough; as far as that can be told without any rows."""
    steps, program = list[Step](), question.program(terms)
    try:
        step = next(program)
        while (
            sum(not isinstance(each, SumChain | PartyProtocol) for each in steps) < MAX_STEPS
        ):  # chains are as many as are asked for
            steps.append(step)
            step = program.send(_likely(step, terms))
    except StopIteration:
        return steps, True
    except (WinnowError, ArithmeticError, np.linalg.LinAlgError, ValueError):
        pass
    return steps, False


def _likely(step: Step, terms: MergedTerms) -> NDArray[Any]:
    owners = len(terms.owners)
    if isinstance(step, Compare):
        return thresholds_of(step, owners) <= max(LIKELY_COUNT, terms.minimum)
    if isinstance(step, Product) and step.thresholds is not None:
        likely: NDArray[np.bool_] = step.thresholds <= max(LIKELY_COUNT, terms.minimum)
        return likely
    length = opened_length(step, owners)
    if isinstance(step, SumChain | PartyProtocol):
        return np.zeros(length, np.int64)
    return np.zeros(length, np.uint8) if isinstance(step, Mix) else np.full(length, LIKELY_COUNT, object)


def _sentences(steps: list[Step], question: Question, owners: int) -> tuple[str, ...]:
    """One for each step; steps that repeat have one together."""
    told = [(text, len(list(same))) for text, same in groupby(_sentence(step, question, owners) for step in steps)]
    return tuple(text if times == 1 else f"{text}; {times} times" for text, times in told)


def _sentence(step: Step, question: Question, owners: int) -> str:
    size = opened_length(step, owners)
    if isinstance(step, Compare) and step.pairs:
        return f"{step.label}: compare {counted(size, 'pair')} of owners in shares; of each, only yes or no is opened"
    if isinstance(step, Compare):
        return f"{step.label}: compare {counted(size, 'sum')} in shares; of each, only yes or no is opened"
    if isinstance(step, Sum):
        spent = 0.0 if step.noise is None else epsilon_of(step.noise.rho, question.delta)
        noise = f", with noise that costs ε = {spent:.3g}" if spent else ""
        whose = "each owner's" if step.per_owner else "the sum over all owners of"
        return f"{step.label}: open {whose} {counted(size, 'number')}{noise}"
    if isinstance(step, SumChain):
        hidden = "the sums over all owners" if step.masked else "each owner's numbers to the server, and their sums"
        return f"{step.label}: open {hidden} of up to {counted(step.words, 'number')} in {counted(step.sums, 'round')}"
    if isinstance(step, PartyProtocol):
        return f"{step.label}: two owners and the third party compute; everybody learns {counted(size, 'number')}"
    if isinstance(step, CountDistinct):
        return f"{step.label}: count different identifiers, hidden by all owners' secrets and mixed"
    if isinstance(step, Product):
        opened = "all are opened" if step.thresholds is None else "of each, only yes or no is opened"
        return f"{step.label}: multiply rows of two owners in shares, and add up {counted(size, 'number')}; {opened}"
    if isinstance(step, Mix):
        boxes = f"{step.slots * owners:,} boxes that only who asks can open"
        return f"{step.label}: mix {boxes}; every owner's are as many and as long"
    return f"{step.label}: match identifiers without showing any that is not common"


def _learns(question: Question, terms: MergedTerms, steps: list[Step]) -> dict[str, tuple[str, ...]]:
    told = ["who asks, the question, and everything that a step opens, which includes the answer"]
    if any(isinstance(step, Compare) and not step.pairs for step in steps):
        told.append(f"which counts are below {terms.minimum}, and which of those are 0: not how large they are")
    if any(step.per_owner for step in steps if isinstance(step, Sum)):
        told.append("the numbers of each owner, as all of them allow that")
    learns = {"everybody: who asks, the owners, the server": tuple(told)}
    chains = [step for step in steps if isinstance(step, SumChain)]
    if shown := tuple(dict.fromkeys(f"{step.label}: {step.shows}" for step in chains)):
        learns["the owners and the server, on the way to the answer"] = shown
    if shown and all(step.masked and not step.by_owner for step in chains):
        part = "an owner's part of these sums, unless the server and all other owners pool what they see"
        learns["nobody"] = (part,)
    if not all(step.masked for step in chains):
        learns["the server besides"] = ("these numbers of each owner: nothing is masked",)
    for step in steps:
        if isinstance(step, Match):
            learns.update(_matching(step, terms))
    for step in [step for step in steps if isinstance(step, PartyProtocol) and any(step.learns)][:1]:
        first, second = (terms.owners[place] for place in step.parties)
        parties = (first, second, "the third party, a helper site or the server")
        for who, learnt in zip(parties, step.learns, strict=True):
            learns[who] = (*learns.get(who, ()), *learnt.split("\n"))
    if all(isinstance(step, Match) for step in steps):
        return learns
    return {**learns, "each of them besides": (f"nothing else, unless {_coalition(len(terms.owners))}",)}


def _matching(step: Match, terms: MergedTerms) -> dict[str, tuple[str, ...]]:
    """What a set intersection shows besides its size, to owners who use their true keys."""
    asker, *others = (terms.owners[place] for place in step.parties)
    sizes = "to within a quarter, how many keys the others have"
    if step.reveal == "size":
        return {f"{asker} and {others[0]}": (sizes, "not which keys are in common")}
    which = "which keys all of them have" if step.share else "not which keys are in common"
    between = ", and those that it shares with the first of them in turn" if len(others) > 1 else ""
    first = (f"which of its keys are also at {listed(others)}{between}", sizes)
    return {asker: first, listed(others): (which, f"to within a quarter, how many keys {asker} has")}


def _coalition(owners: int) -> str:
    if owners == 1:
        return "it is the only owner: nothing is shared"
    if owners == 2:
        return "the third party that computes (a helper site, else the server) and one owner pool what they see"
    computing = computing_parties(owners)
    return f"{(computing - 1) // 2 + 1} of the {computing} owners that compute pool what they see"
