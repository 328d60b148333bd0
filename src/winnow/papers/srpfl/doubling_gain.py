"""What the doubling scheme gains, without a target chosen by hand: by shares of the other's best score, and by time."""

from collections.abc import Iterator

import numpy as np

from winnow.papers.page_blocks import PageBlock, TableBlock, TextBlock
from winnow.papers.result_json_lines import ResultLines, RunResultLine
from winnow.papers.srpfl.methods import COMMUNICATION_COSTS, METHOD_PAIRS, ComparedMethod
from winnow.papers.srpfl.score_trace import best_score, elapsed_seconds, points_ahead, points_text, score_at
from winnow.report import MeanAndSd
from winnow.report.number_format import mean_sd_text

TARGET_SHARES = (0.9, 0.95, 0.98, 0.99)
"""Targets as shares of the best score that the other method reaches on the same seed."""

SeedPairs = list[tuple[RunResultLine, RunResultLine]]


def speedup_blocks(lines: ResultLines, of: str) -> list[PageBlock]:
    """Both tables of a figure and who ends higher, where it has runs of a pair on the same seeds."""
    pairs = [(quick, slow, both) for quick, slow in METHOD_PAIRS if (both := _same_seeds(quick, slow, lines, of))]
    if not pairs:
        return []
    sooner = [
        [f"{_named(quick, slow)}, C.T. = {cost}", *(_sooner(quick, slow, both, share, cost) for share in TARGET_SHARES)]
        for quick, slow, both in pairs
        for cost in COMMUNICATION_COSTS
    ]
    as_long = [
        [_named(quick, slow), *(_as_long(quick, slow, both, cost) for cost in COMMUNICATION_COSTS)]
        for quick, slow, both in pairs
    ]
    return [
        TableBlock(
            "Speed-up of the first method in reaching a share of the second's best, over the seeds where it does.",
            ("Methods", *(f"{share:.0%}" for share in TARGET_SHARES)),
            sooner,
        ),
        TableBlock(
            "Best accuracy of both by the time at which the shorter of their runs ends: a run of the first has as many"
            " rounds and takes less time.",
            ("Methods", *(f"C.T. = {cost}" for cost in COMMUNICATION_COSTS)),
            as_long,
        ),
        TextBlock(
            "After equally many rounds, in points and paired by seed: "
            + "; ".join(_ending(quick, slow, both) for quick, slow, both in pairs)
            + "."
        ),
    ]


def _ending(quick: ComparedMethod, slow: ComparedMethod, both: SeedPairs) -> str:
    shared = [min(run.rounds, other.rounds) for run, other in both]
    told = []
    for name, score in (("best", best_score), ("last", lambda values: score_at(values, -1))):
        mine, theirs = (
            {
                pair[place].seed: score(method.values(pair[place])[: rounds + 1])
                for pair, rounds in zip(both, shared, strict=True)
            }
            for place, method in enumerate((quick, slow))
        )
        ahead = points_ahead(mine, theirs)
        told.append(f"{name} score {points_text(ahead)}" if ahead else "")
    return f"{quick.title} less {slow.title}, " + ", ".join(filter(None, told))


def _named(quick: ComparedMethod, slow: ComparedMethod) -> str:
    return f"{quick.title} and {slow.title}"


def _same_seeds(quick: ComparedMethod, slow: ComparedMethod, lines: ResultLines, of: str) -> SeedPairs:
    other = {run.seed: run for run in slow.runs(lines, of)}
    return [(run, other[run.seed]) for run in quick.runs(lines, of) if run.seed in other]


def _sooner(quick: ComparedMethod, slow: ComparedMethod, both: SeedPairs, share: float, communication: float) -> str:
    ratios = list(_ratios(quick, slow, both, share, communication))
    few = f" ({len(ratios)} of {len(both)})" if 0 < len(ratios) < len(both) else ""
    return f"{mean_sd_text(MeanAndSd.of(ratios), 2)}{few}" if ratios else f"none of {len(both)}"


def _ratios(
    quick: ComparedMethod, slow: ComparedMethod, both: SeedPairs, share: float, communication: float
) -> Iterator[float]:
    for run, other in both:
        target = share * (slow.best(other) or 0.0)
        sooner, later = quick.seconds_to(target, run, communication), slow.seconds_to(target, other, communication)
        if sooner and later:
            yield later / sooner


def _as_long(quick: ComparedMethod, slow: ComparedMethod, both: SeedPairs, communication: float) -> str:
    ends = [min(elapsed_seconds(run, communication)[-1] for run in pair) for pair in both]
    scores = [
        MeanAndSd.of(_best_by(end, method, pair[place], communication) for end, pair in zip(ends, both, strict=True))
        for place, method in enumerate((quick, slow))
    ]
    return " and ".join(mean_sd_text(score, 3) for score in scores)


def _best_by(seconds: float, method: ComparedMethod, run: RunResultLine, communication: float) -> float:
    return float(np.nanmax(method.values(run)[elapsed_seconds(run, communication) <= seconds]))
