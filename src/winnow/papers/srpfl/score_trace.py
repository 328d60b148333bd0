"""What a run's scores say: accuracy by round, `nan` where it was not measured or not a number, from round 0 on."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from winnow.papers.result_json_lines import RunResultLine
from winnow.report import MeanAndSd
from winnow.report.number_format import MISSING, mean_sd_text
from winnow.runs.target_crossing import first_crossing, sustained_crossing

Scores = NDArray[np.float64]


def scores_of(run: RunResultLine, *, tuned: bool) -> Scores:
    """Of models as clients use them, or of those that clients have first tuned for themselves."""
    return np.array(run.tuned if tuned else run.trace, np.float64)


def best_score(scores: Scores) -> float | None:
    return float(np.nanmax(scores)) if np.isfinite(scores).any() else None


def score_at(scores: Scores, round: int) -> float | None:
    """The score after a round; -1 is the last. None where it is not a number."""
    return float(scores[round]) if len(scores) and np.isfinite(scores[round]) else None


def round_reaching(scores: Scores, target: float, *, sustained: bool = False) -> int | None:
    """The first round at the target; `sustained`, the first that five others follow whose mean is at it, too."""
    return (sustained_crossing if sustained else first_crossing)(scores.tolist(), target)


def elapsed_seconds(run: RunResultLine, communication: float) -> NDArray[np.float64]:
    """The time at each point of a run, had every round cost so much more; the first point lies before all rounds."""
    later: NDArray[np.float64] = np.array(run.seconds) + communication * np.arange(len(run.seconds))
    return later


def seconds_reaching(
    run: RunResultLine, target: float, *, tuned: bool, communication: float = 0.0, sustained: bool = False
) -> float | None:
    reached = round_reaching(scores_of(run, tuned=tuned), target, sustained=sustained)
    return None if reached is None else float(elapsed_seconds(run, communication)[reached])


# Over seeds -----------------------------------------------------------------------------------------------------------

BySeed = Mapping[int, float | None]


def speedup(sooner: BySeed, later: BySeed) -> MeanAndSd | None:
    """How many times as soon, over the seeds on which both get there."""
    pairs = ((time, later.get(seed)) for seed, time in sooner.items())
    return MeanAndSd.of(other / time for time, other in pairs if time and other)


def points_ahead(scores: BySeed, others: BySeed) -> MeanAndSd | None:
    """How many points of accuracy more, paired by seed, where both have a score."""
    pairs = ((score, others.get(seed)) for seed, score in scores.items())
    return MeanAndSd.of(100 * (score - other) for score, other in pairs if score is not None and other is not None)


def times_text(times: Sequence[float | None], digits: int = 0) -> str:
    """The mean over the runs that got there, and how many did where not all."""
    reached = sum(time is not None for time in times)
    if not reached:
        return f"none of {len(times)}"
    return mean_sd_text(MeanAndSd.of(times), digits) + (f" ({reached} of {len(times)})" if reached < len(times) else "")


def points_text(points: MeanAndSd, *, of: int | None = None) -> str:
    """With a sign, and over how many seeds where not all."""
    sign = "+" if points.mean >= 0 else "−"
    few = "" if of is None or points.count == of else f" ({points.count} of {of})"
    return f"{sign}{mean_sd_text(MeanAndSd(mean=abs(points.mean), sd=points.sd, count=points.count), 1)}{few}"


def range_text(rounds: Sequence[int | None]) -> str:
    """The least and the most over the runs that got there."""
    reached = sorted(each for each in rounds if each is not None)
    if not reached:
        return MISSING
    return f"{reached[0]}" if reached[0] == reached[-1] else f"{reached[0]} to {reached[-1]}"


def sustained_text(different: Sequence[str]) -> str:
    """Which times differ if one lucky round does not count."""
    rule = "Times to a sustained crossing (the next five rounds average at least the target) are the same"
    return f"{rule}, but for: {'; '.join(different)}." if different else f"{rule} in every row."


def rounds_text(runs: Sequence[RunResultLine]) -> str:
    """How many rounds these runs have."""
    return range_text([run.rounds for run in runs])
