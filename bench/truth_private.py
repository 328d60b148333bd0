"""What the private protocol of truth discovery reaches: `python -m bench.truth_private WHAT [FOLDER]`.

equal    on every set of FOLDER (as bench.truth has it): is private equal to plain, and what is sent
leavers  on every set: how many of a leaver's items the change of the sums gives away
cost     seconds by items and by participants, with 15 holders
size     20,000 items × 800 participants with 15 holders: seconds and memory
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import perf_counter, process_time

import numpy as np

from winnow.analytics.truth.answer_arrays import AnswerArrays, Indices, Numbers
from winnow.analytics.truth.crowd_answers import CrowdAnswers, read_answers
from winnow.analytics.truth.truth_methods import METHODS
from winnow.analytics.truth.truth_report import make_report
from winnow.analytics.truth.truth_simulation import discover_privately
from winnow.analytics.truth.truth_terms import agree_on_terms
from winnow.analytics.truth.truth_vectors import discover_plainly
from winnow.analytics.truth.truth_workflow import TruthDiscovery
from winnow.core import RoundFinished
from winnow.papers.truth.leavers import sums_with_leavers
from winnow.papers.truth.simulated_run import ADAPTIVE, KEPT, LeavingRule

HOLDERS = 15
LETTER_BYTES = 200
"""What a letter may take besides its shares."""
LEFT_IN = (3, 5, 7, 10)
Signs = Callable[[Sequence[Numbers]], Sequence[Numbers]]
"""What somebody who sees the sums of each iteration takes for signs of a leaver's items: scores of all items."""


def main(what: str, *folder: str) -> None:
    place = Path(*folder)
    for line in {"equal": equal, "leavers": leavers, "cost": cost, "size": size}[what](place):
        print(line, flush=True)


# Private equals plain -------------------------------------------------------------------------------------------------


def equal(folder: Path) -> Iterator[str]:
    yield from _header("set, method", "labels that differ", "max Δρ", "max Δτ", "bytes ÷ (4·k·L + 200·k)", "CPU s")
    for name, crowd, methods in _sets(folder):
        for method in methods:
            yield _row(f"{name}, {method}", *_compared(crowd, method))


def _compared(crowd: CrowdAnswers, method: str) -> list[str]:
    way, arrays, sent, begun = METHODS[method], crowd.arrays, list[float](), process_time()
    found = _private(arrays, method, lambda event: sent.append(event.cost.sent_bytes), holders=None)
    spent = process_time() - begun
    plain = discover_plainly(way, arrays, way.iterations)
    assert found.estimate is not None
    reports = [make_report(crowd, way, estimate, way.iterations).truth for estimate in (found.estimate, plain)]
    differ = sum(ours != theirs for ours, theirs in zip(*(each.values() for each in reports), strict=True))
    k, n, length = len(found.terms.holders), arrays.worker_count, found.terms.length
    allowed = n * k * (4 * length + LETTER_BYTES)
    return [
        "numbers" if not crowd.labels else str(differ),
        f"{_largest(found.estimate.confidence, plain.confidence):.1e}",
        f"{_largest(way.trust(arrays, found.estimate), way.trust(arrays, plain)):.1e}",
        f"{max(sent) / allowed:.3f}",
        f"{spent:.1f}",
    ]


def _largest(ours: Numbers, theirs: Numbers) -> float:
    return float(np.abs(ours - theirs).max())


def _sets(folder: Path) -> Iterator[tuple[str, CrowdAnswers, tuple[str, ...]]]:
    """Every set by name, and the methods for it."""
    for place in sorted(folder.iterdir()):
        if (labels := place / "label.csv").exists():
            crowd = read_answers(labels, item="item", worker="worker", label="label")
            yield place.name, crowd, ("sum", "logistic", "dawid-skene")
        elif (numbers := place / "answer.csv").exists():
            crowd = read_answers(numbers, item="question", worker="worker", label="answer", numeric=True)
            yield place.name, crowd, ("crh",)


# Who leaves -----------------------------------------------------------------------------------------------------------


def leavers(folder: Path) -> Iterator[str]:
    """Each cell has the mean over all who could leave, and over the fifth that answered most."""
    yield from _header(
        "set, method, iteration", "guessing", "adaptive, most", "kept, most", "kept, least", "kept, off trend"
    )
    for name, crowd, methods in _sets(folder):
        answers = crowd.arrays
        if len(answers.items) == answers.item_count * answers.worker_count:
            continue  # everybody answered everything, so there is nothing to find
        for method, left_in in product(sorted({*methods} & {"sum", "logistic"}), LEFT_IN):
            yield _row(f"{name}, {method}, {left_in}", *_given_away(answers, method, left_in))


def _given_away(answers: AnswerArrays, method: str, left_in: int) -> list[str]:
    who, counts = np.unique(answers.workers, return_counts=True)
    busiest = counts >= np.quantile(counts, 0.8)
    guessed = [counts / answers.item_count]
    found = [
        np.array([share_found(answers, leaver, rule, left_in, signs, method=method) for leaver in who])
        for rule, signs in ((ADAPTIVE[-1], most), (KEPT, most), (KEPT, least), (KEPT, off_trend))
    ]
    return [f"{shares.mean():.3f}, {shares[busiest].mean():.3f}" for shares in guessed + found]


def items_of(answers: AnswerArrays, worker: int) -> Indices:
    return np.unique(answers.items[answers.workers == worker])


def share_found(
    answers: AnswerArrays, leaver: int, rule: LeavingRule, left_in: int, signs: Signs, *, method: str = "logistic"
) -> float:
    """The share of a leaver's items among as many with the highest score; of the best score, if there are several."""
    everybody = np.ones(answers.worker_count, bool)
    without = np.arange(answers.worker_count) != leaver
    present = [everybody] * (left_in - 1) + [without]
    scores = signs([sums for sums, _ in sums_with_leavers(answers, rule, present, method)])
    own = items_of(answers, leaver)
    chosen = [np.argsort(-score, kind="stable")[: len(own)] for score in scores]
    return max(len(np.intersect1d(each, own)) for each in chosen) / len(own)


def most(sums: Sequence[Numbers]) -> list[Numbers]:
    """Items whose sums change most when the participant leaves."""
    return [np.abs(sums[-1] - sums[-2]).sum(axis=1)]


def least(sums: Sequence[Numbers]) -> list[Numbers]:
    return [-score for score in most(sums)]


def off_trend(sums: Sequence[Numbers]) -> list[Numbers]:
    """Items whose sums stop shrinking their changes as they did: by one factor for all items, or by each sum's own."""
    changes = np.diff(np.array(sums), axis=0)
    factors = [_ratio((changes[-1] * changes[-2]).sum(), (changes[-2] ** 2).sum())]
    if len(changes) > 2:
        factors.append(_ratio(changes[-2], changes[-3]).clip(-1.5, 1.5))
    return [np.abs(changes[-1] - factor * changes[-2]).sum(axis=1) for factor in factors]


def _ratio(above: Numbers, below: Numbers) -> Numbers:
    """Zero where nothing changed before."""
    return np.divide(above, below, out=np.zeros_like(above), where=below != 0)


# Cost -----------------------------------------------------------------------------------------------------------------


def cost(_: Path) -> Iterator[str]:
    yield from _header("items × participants", "CPU s", "CPU µs an item, a participant and an iteration")
    for items, people in ((1000, 100), (2000, 100), (4000, 100), (8000, 100), (2000, 50), (2000, 200), (2000, 400)):
        answers, begun = _made_up(items, people), process_time()
        _private(answers, "logistic")
        spent = process_time() - begun
        yield _row(f"{items:,} × {people}", f"{spent:.1f}", f"{spent / items / people / 10 * 1e6:.2f}")


def size(_: Path) -> Iterator[str]:
    answers, wall, begun = _made_up(20_000, 800), perf_counter(), process_time()
    found = _private(answers, "logistic")
    assert found.round == METHODS["logistic"].iterations
    yield from _header("items × participants, answers", "CPU s", "wall s", "peak memory, GB")
    memory = getrusage(RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    times = f"{process_time() - begun:.0f}", f"{perf_counter() - wall:.0f}"
    yield _row(f"20,000 × 800, {len(answers.items):,}", *times, f"{memory:.2f}")


def _made_up(items: int, workers: int) -> AnswerArrays:
    """Every worker answers a twentieth of the items, and is right in three of four."""
    rng = np.random.default_rng(items + workers)
    truth = rng.integers(0, 2, items)
    who, what = np.nonzero(rng.random((workers, items)) < 0.05)
    said = truth[what] ^ (rng.random(len(what)) < 0.25)
    return AnswerArrays(items=what, workers=who, values=said, item_count=items, worker_count=workers, classes=2)


def _private(
    answers: AnswerArrays,
    method: str,
    on_round: Callable[[RoundFinished], object] = lambda event: None,
    holders: int | None = HOLDERS,
) -> TruthDiscovery:
    terms = agree_on_terms(
        method=method,
        items=answers.item_count,
        classes=answers.classes,
        participants=answers.worker_count,
        holders=holders,
    )
    return discover_privately(
        terms, answers, on_event=lambda event: on_round(event) if isinstance(event, RoundFinished) else None
    )


def _header(*cells: str) -> list[str]:
    return [_row(*cells), "|" + "---|" * len(cells)]


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main(*sys.argv[1:])
