"""The methods of figure 3, and what their runs say about time."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winnow.report import Spread
from winnow.reproduce.lines import Lines, RunLine, runs_of

COMMUNICATION = (0, 10, 100)
"""The costs of communication a round that the paper shows (C.T.): they only shift the clock, so one run serves all."""
TUNE_EVERY = 10


@dataclass(frozen=True, kw_only=True)
class Method:
    """A curve of the figures. A `tuned` one shows models that clients have first trained for themselves."""

    title: str
    algorithm: str
    tuned: bool = False

    def values(self, run: RunLine) -> NDArray[np.float64]:
        """Accuracy by round, nan where it was not measured."""
        return np.array(run.tuned if self.tuned else run.trace, np.float64)

    def best(self, run: RunLine) -> float | None:
        values = self.values(run)
        return float(np.nanmax(values)) if np.isfinite(values).any() else None

    def seconds_to(self, target: float, run: RunLine, communication: float) -> float | None:
        """The time at which a run first reaches the target."""
        reached = np.flatnonzero(self.values(run) >= target)
        return float(clock(run, communication)[reached[0]]) if len(reached) else None

    def runs(self, lines: Lines, of: str) -> list[RunLine]:
        return [run for run in runs_of(lines, of, self.algorithm) if self.best(run) is not None]


SRPFL = Method(title="SRPFL", algorithm="srpfl")
FEDREP = Method(title="FedRep", algorithm="fedrep")
LG_SRPFL = Method(title="LG-SRPFL", algorithm="lg-srpfl")
LG_FEDAVG = Method(title="LG-FedAvg", algorithm="lg-fedavg")
METHODS = (
    SRPFL,
    FEDREP,
    LG_SRPFL,
    LG_FEDAVG,
    Method(title="FLANP-FT", algorithm="flanp", tuned=True),
    Method(title="FedAvg-FT", algorithm="fedavg-rp", tuned=True),
    Method(title="HF-MAML", algorithm="hf-maml", tuned=True),
    Method(title="FLANP", algorithm="flanp"),
    Method(title="FedAvg", algorithm="fedavg-rp"),
)
ALGORITHMS = tuple(dict.fromkeys(method.algorithm for method in METHODS))
AUTHORS_PROTOCOL = (
    Method(title="SRPFL, heads reset and tuned", algorithm="srpfl", tuned=True),
    Method(title="FedRep, heads reset and tuned", algorithm="fedrep", tuned=True),
)
"""Judged as the authors' code does: every head reset to the average of all, tuned for 10 epochs, then tested."""
PAIRS = ((SRPFL, FEDREP), (LG_SRPFL, LG_FEDAVG))

TUNING = {
    "srpfl": ("judge.tune_epochs=10", "judge.tune_from=average"),
    "fedrep": ("judge.tune_epochs=10", "judge.tune_from=average"),
    "flanp": ("judge.tune_epochs=10",),
    "fedavg-rp": ("judge.tune_epochs=10",),
    "hf-maml": ("judge.tune_epochs=1",),
}
"""What clients do before they judge a tuned model."""


def clock(run: RunLine, communication: float) -> NDArray[np.float64]:
    """The time at each point of a run, had every round cost so much more; the first point lies before all rounds."""
    later: NDArray[np.float64] = np.array(run.seconds) + communication * np.arange(len(run.seconds))
    return later


def faster(quick: Method, slow: Method, target: float, communication: float, lines: Lines, of: str) -> Spread | None:
    """How many times as soon one method is at the target as another, over the seeds on which both reach it."""
    times = [
        {run.seed: method.seconds_to(target, run, communication) for run in method.runs(lines, of)}
        for method in (quick, slow)
    ]
    pairs = ((sooner, times[1].get(seed)) for seed, sooner in times[0].items())
    return Spread.of(later / sooner for sooner, later in pairs if sooner and later)
