"""The methods of figure 3, and what their runs say about time."""

from dataclasses import dataclass

from winnow.papers.result_json_lines import ResultLines, RunResultLine, run_result_lines
from winnow.papers.srpfl.score_trace import Scores, best_score, scores_of, seconds_reaching, speedup
from winnow.report import MeanAndSd

COMMUNICATION_COSTS = (0, 10, 100)
"""The costs of communication a round that the paper shows (C.T.): they only shift the clock, so one run serves all."""
TUNE_EVERY = 10


@dataclass(frozen=True, kw_only=True)
class ComparedMethod:
    """A curve of the figures. A `tuned` one shows models that clients have first trained for themselves."""

    title: str
    algorithm: str
    tuned: bool = False

    def values(self, run: RunResultLine) -> Scores:
        return scores_of(run, tuned=self.tuned)

    def best(self, run: RunResultLine) -> float | None:
        return best_score(self.values(run))

    def seconds_to(
        self, target: float, run: RunResultLine, communication: float, *, sustained: bool = False
    ) -> float | None:
        return seconds_reaching(run, target, tuned=self.tuned, communication=communication, sustained=sustained)

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


def mean_speedup(
    quick: ComparedMethod,
    slow: ComparedMethod,
    target: float,
    communication: float,
    lines: ResultLines,
    of: str,
    *,
    sustained: bool = False,
) -> MeanAndSd | None:
    """How many times as soon one method is at the target as another, over the seeds on which both reach it."""
    sooner, later = (
        {run.seed: method.seconds_to(target, run, communication, sustained=sustained) for run in method.runs(lines, of)}
        for method in (quick, slow)
    )
    return speedup(sooner, later)
