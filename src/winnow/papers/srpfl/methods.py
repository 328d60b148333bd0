"""The methods of figure 3, and what their runs say about time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winnow.papers.result_json_lines import ResultLines, RunResultLine, run_result_lines
from winnow.report import MeanAndSd
from winnow.report.number_format import mean_sd_text

COMMUNICATION_COSTS = (0, 10, 100)
"""The costs of communication a round that the paper shows (C.T.): they only shift the clock, so one run serves all."""
TUNE_EVERY = 10


@dataclass(frozen=True, kw_only=True)
class ComparedMethod:
    """A curve of the figures. A `tuned` one shows models that clients have first trained for themselves."""

    title: str
    algorithm: str
    tuned: bool = False

    def values(self, run: RunResultLine) -> NDArray[np.float64]:
        """Accuracy by round, nan where it was not measured."""
        return np.array(run.tuned if self.tuned else run.trace, np.float64)

    def best(self, run: RunResultLine) -> float | None:
        values = self.values(run)
        return float(np.nanmax(values)) if np.isfinite(values).any() else None

    def seconds_to(self, target: float, run: RunResultLine, communication: float) -> float | None:
        """The time at which a run first reaches the target."""
        reached = np.flatnonzero(self.values(run) >= target)
        return float(elapsed_seconds(run, communication)[reached[0]]) if len(reached) else None

    def runs(self, lines: ResultLines, of: str) -> list[RunResultLine]:
        return [run for run in run_result_lines(lines, of, self.algorithm) if self.best(run) is not None]


SRPFL = ComparedMethod(title="SRPFL", algorithm="srpfl")
FEDREP = ComparedMethod(title="FedRep", algorithm="fedrep")
LG_SRPFL = ComparedMethod(title="LG-SRPFL", algorithm="lg-srpfl")
LG_FEDAVG = ComparedMethod(title="LG-FedAvg", algorithm="lg-fedavg")
METHODS = (
    SRPFL,
    FEDREP,
    LG_SRPFL,
    LG_FEDAVG,
    ComparedMethod(title="FLANP-FT", algorithm="flanp", tuned=True),
    ComparedMethod(title="FedAvg-FT", algorithm="fedavg-rp", tuned=True),
    ComparedMethod(title="HF-MAML", algorithm="hf-maml", tuned=True),
    ComparedMethod(title="FLANP", algorithm="flanp"),
    ComparedMethod(title="FedAvg", algorithm="fedavg-rp"),
)
ALGORITHMS = tuple(dict.fromkeys(method.algorithm for method in METHODS))
AUTHORS_PROTOCOL = (
    ComparedMethod(title="SRPFL, heads reset and tuned", algorithm="srpfl", tuned=True),
    ComparedMethod(title="FedRep, heads reset and tuned", algorithm="fedrep", tuned=True),
)
"""Evaluated as the authors' code does: every head reset to the average of all, tuned for 10 epochs, then tested."""
METHOD_PAIRS = ((SRPFL, FEDREP), (LG_SRPFL, LG_FEDAVG))

TUNING = {
    "srpfl": ("evaluation.tune_epochs=10", "evaluation.tune_from=average"),
    "fedrep": ("evaluation.tune_epochs=10", "evaluation.tune_from=average"),
    "flanp": ("evaluation.tune_epochs=10",),
    "fedavg-rp": ("evaluation.tune_epochs=10",),
    "hf-maml": ("evaluation.tune_epochs=1",),
}
"""What clients do before they evaluate a tuned model."""


def elapsed_seconds(run: RunResultLine, communication: float) -> NDArray[np.float64]:
    """The time at each point of a run, had every round cost so much more; the first point lies before all rounds."""
    later: NDArray[np.float64] = np.array(run.seconds) + communication * np.arange(len(run.seconds))
    return later


def mean_speedup(
    quick: ComparedMethod, slow: ComparedMethod, target: float, communication: float, lines: ResultLines, of: str
) -> MeanAndSd | None:
    """How many times as soon one method is at the target as another, over the seeds on which both reach it."""
    times = [
        {run.seed: method.seconds_to(target, run, communication) for run in method.runs(lines, of)}
        for method in (quick, slow)
    ]
    pairs = ((sooner, times[1].get(seed)) for seed, sooner in times[0].items())
    return MeanAndSd.of(later / sooner for sooner, later in pairs if sooner and later)


def times_text(times: Sequence[float | None], digits: int = 0) -> str:
    """The mean over the runs that got there, and how many did where not all."""
    reached = sum(time is not None for time in times)
    if not reached:
        return f"none of {len(times)}"
    return mean_sd_text(MeanAndSd.of(times), digits) + (f" ({reached} of {len(times)})" if reached < len(times) else "")
