"""How much of SRPFL's gain is the protocol of evaluation, and how much the length of its stages.

The authors' code trains head and body in five turns of 10 + 1 epochs a round, and evaluates with every head reset to
the average of all and tuned for 10 epochs. A client's own head stays untrained until its first turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from winnow.config.resolve import resolve
from winnow.papers.page_blocks import PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem, PaperRun, ReproductionOptions
from winnow.papers.result_json_lines import ResultLines, RunResultLine, run_result_lines
from winnow.papers.srpfl.methods import TUNING, ComparedMethod, times_text
from winnow.report import MeanAndSd
from winnow.report.number_format import mean_sd_text

ROUNDS = 40
STAGE_ROUNDS = (1, 2, 5, 10)
AUTHORS_EPOCHS = ("client.turns=5", "local.epochs=1")


@dataclass(frozen=True, kw_only=True)
class ProtocolMethod:
    """A row: an algorithm with settings of its own."""

    name: str
    title: str
    algorithm: str
    settings: tuple[str, ...] = ()
    own_heads: bool = True
    """Whether clients have something of their own to evaluate untuned."""

    def seconds_to(self, target: float, run: RunResultLine, *, tuned: bool) -> float | None:
        return ComparedMethod(title="", algorithm="", tuned=tuned).seconds_to(target, run, communication=0)

    def best(self, run: RunResultLine, *, tuned: bool) -> float | None:
        return ComparedMethod(title="", algorithm="", tuned=tuned).best(run)


FEDREP = ProtocolMethod(name="fedrep", title="FedRep", algorithm="fedrep", settings=AUTHORS_EPOCHS)
METHODS = (
    FEDREP,
    *(
        ProtocolMethod(
            name=f"srpfl-stages-{rounds}",
            title=f"SRPFL, stages of {rounds} round{'s' if rounds > 1 else ''}",
            algorithm="srpfl",
            settings=(*AUTHORS_EPOCHS, f"select.rounds_per_stage={rounds}"),
        )
        for rounds in STAGE_ROUNDS
    ),
    ProtocolMethod(name="fedavg-rp", title="FedAvg-FT", algorithm="fedavg-rp", own_heads=False),
    ProtocolMethod(name="flanp", title="FLANP-FT", algorithm="flanp", own_heads=False),
    ProtocolMethod(
        name="hf-maml",
        title="HF-MAML, β = 0.1, after one step",
        algorithm="hf-maml",
        settings=("local.learning_rate=0.1", "client.adapt_steps=1"),
        own_heads=False,
    ),
)


@dataclass(frozen=True, kw_only=True)
class ProtocolTable(PaperItem):
    """Both protocols on one preset, evaluated after every round."""

    preset: str
    targets: tuple[float, ...]
    about: str

    def runs(self, wanted: ReproductionOptions) -> list[PaperRun]:
        return [self._run(method, seed, wanted) for method in METHODS for seed in range(wanted.seeds)]

    def _run(self, method: ProtocolMethod, seed: int, wanted: ReproductionOptions) -> PaperRun:
        sets = (*method.settings, *TUNING[method.algorithm], "evaluation.tune_every=1", *wanted.sets)
        rounds = wanted.rounds or ROUNDS
        experiment = resolve(self.preset, sets=sets, algorithm=method.algorithm, seed=seed, rounds=rounds)
        return PaperRun(item=self.name, algorithm=method.name, experiment=experiment)

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        shown = [(method, runs) for method in METHODS if (runs := run_result_lines(lines, self.name, method.name))]
        if not shown:
            return []
        slow = run_result_lines(lines, self.name, FEDREP.name)
        rounds = sorted({run.rounds for _, runs in shown for run in runs})
        lasted = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        return [
            TextBlock(self.about),
            *(
                TableBlock(
                    f"{meaning} {lasted} rounds; number of seeds in brackets; total time (C.T. = 0) to a target, and"
                    " how many times as soon as FedRep on the same seed.",
                    ["Method", "Best accuracy", *(f"Time to {target:g}" for target in self.targets)],
                    [self._row(method, runs, slow, tuned=tuned) for method, runs in shown if tuned or method.own_heads],
                )
                for tuned, meaning in (
                    (True, "Heads reset to the average of all and tuned for 10 epochs, the authors' protocol."),
                    (False, "Clients' own heads."),
                )
            ),
        ]

    def _row(
        self, method: ProtocolMethod, runs: Sequence[RunResultLine], slow: Sequence[RunResultLine], *, tuned: bool
    ) -> list[str]:
        best = MeanAndSd.of(method.best(run, tuned=tuned) for run in runs)
        cells = [self._cell(method, target, runs, slow, tuned=tuned) for target in self.targets]
        return [f"{method.title} ({len(runs)})", mean_sd_text(best, 3), *cells]

    def _cell(
        self,
        method: ProtocolMethod,
        target: float,
        runs: Sequence[RunResultLine],
        slow: Sequence[RunResultLine],
        *,
        tuned: bool,
    ) -> str:
        times = {run.seed: method.seconds_to(target, run, tuned=tuned) for run in runs}
        others = {run.seed: FEDREP.seconds_to(target, run, tuned=tuned) for run in slow}
        pairs = ((time, others.get(seed)) for seed, time in times.items())
        gain = MeanAndSd.of(other / time for time, other in pairs if time and other)
        told = times_text(list(times.values()), 2)
        return told if gain is None or method is FEDREP else f"{told}: {mean_sd_text(gain, 1)} ×"
