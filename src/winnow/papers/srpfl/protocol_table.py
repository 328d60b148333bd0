"""How much of SRPFL's gain is the protocol of evaluation, and how much the length of its stages.

The authors' code trains head and body in five turns of 10 + 1 epochs a round, and evaluates with every head reset to
the average of all and tuned for 10 epochs. A client's own head stays untrained until its first turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from winnow.config.resolve import resolve
from winnow.learn.algorithms.fedper import AlternatingUpdate
from winnow.papers.page_blocks import PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem, PaperRun, ReproductionOptions
from winnow.papers.result_json_lines import ResultLines, RunResultLine, run_result_lines
from winnow.papers.srpfl.methods import TUNING
from winnow.papers.srpfl.score_trace import (
    best_score,
    points_ahead,
    points_text,
    range_text,
    round_reaching,
    rounds_text,
    score_at,
    scores_of,
    seconds_reaching,
    speedup,
    sustained_text,
    times_text,
)
from winnow.report import MeanAndSd
from winnow.report.number_format import mean_sd_text

ROUNDS = 40
STAGE_ROUNDS = (1, 2, 5, 10)
TUNED_ROWS = (
    "Heads of FedRep and SRPFL are reset to the average of all and tuned for 10 epochs, the authors' protocol;"
    " FedAvg-FT and FLANP-FT tune the whole model for 10 epochs, HF-MAML by one step of α."
)
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

    @property
    def family(self) -> str:
        return self.title.partition(",")[0]


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


Shown = Sequence[tuple[ProtocolMethod, Sequence[RunResultLine]]]


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
        lasted = rounds_text([run for _, runs in shown for run in runs])
        common = (
            f"{lasted} rounds; number of seeds in brackets; total time (C.T. = 0) until a target is first reached, how"
            " many times as soon as FedRep on the same seed, and in which rounds."
        )
        header = ["Best accuracy", "Last accuracy"]
        header += [title for target in self.targets for title in (f"Time to {target:g}", f"Rounds to {target:g}")]
        own = [(method, runs) for method, runs in shown if method.own_heads]
        return [
            TextBlock(f"{self.about} {self._epochs_text([method for method, _ in shown])}"),
            TableBlock(
                f"Tuned models. {TUNED_ROWS} Round 0 is what tuning makes of the untrained model. {common}",
                ["Method", "Round 0", *header],
                [self._row(method, runs, lines, tuned=True) for method, runs in shown],
            ),
            *self._remarks(shown, lines, tuned=True),
            TableBlock(
                f"Clients' own heads. {common}",
                ["Method", *header],
                [self._row(method, runs, lines, tuned=False) for method, runs in own],
            ),
            *self._remarks(own, lines, tuned=False),
        ]

    def _epochs_text(self, methods: Sequence[ProtocolMethod]) -> str:
        """A round lasts as long whatever clients do in it, so the table has to say how much that is."""
        by_epochs: dict[str, dict[str, None]] = {}
        for method in methods:
            experiment = resolve(self.preset, sets=method.settings, algorithm=method.algorithm)
            client, passes = experiment.client, f"{experiment.local.passes(1):g}"
            if isinstance(client, AlternatingUpdate):
                passes = f"{client.turns} × ({client.head_epochs} + {passes})"
            elif client.training_factor != 1:
                passes = f"{passes} with {client.training_factor:g} gradients a step"
            by_epochs.setdefault(passes, {})[method.family] = None
        told = "; ".join(f"{' and '.join(families)} {epochs}" for epochs, families in by_epochs.items())
        return f"Epochs that a client trains in a round, which lasts as long for all methods: {told}."

    def _row(
        self, method: ProtocolMethod, runs: Sequence[RunResultLine], lines: ResultLines, *, tuned: bool
    ) -> list[str]:
        scores = [scores_of(run, tuned=tuned) for run in runs]
        diverged = sum(score_at(values, -1) is None for values in scores)
        note = f" ({diverged} of {len(runs)} diverged)" if diverged else ""
        before = [mean_sd_text(MeanAndSd.of(score_at(values, 0) for values in scores), 3)] if tuned else []
        times = [
            cell
            for target in self.targets
            for cell in (
                self._time(method, target, runs, lines, tuned=tuned),
                range_text([round_reaching(values, target) for values in scores]),
            )
        ]
        return [
            f"{method.title} ({len(runs)})",
            *before,
            mean_sd_text(MeanAndSd.of(map(best_score, scores)), 3) + note,
            mean_sd_text(MeanAndSd.of(score_at(values, -1) for values in scores), 3) + note,
            *times,
        ]

    def _time(
        self,
        method: ProtocolMethod,
        target: float,
        runs: Sequence[RunResultLine],
        lines: ResultLines,
        *,
        tuned: bool,
        sustained: bool = False,
    ) -> str:
        mine, fedrep = (
            {run.seed: seconds_reaching(run, target, tuned=tuned, sustained=sustained) for run in those}
            for those in (runs, run_result_lines(lines, self.name, FEDREP.name))
        )
        gain, told = speedup(mine, fedrep), times_text(list(mine.values()), 2)
        return told if gain is None or method is FEDREP else f"{told}: {mean_sd_text(gain, 1)} ×"

    def _remarks(self, shown: Shown, lines: ResultLines, *, tuned: bool) -> list[TextBlock]:
        """What the table says when it is read with care."""
        later = [
            f"{method.title} at {target:g}, {sustained}"
            for target in self.targets
            for method, runs in shown
            if (sustained := self._time(method, target, runs, lines, tuned=tuned, sustained=True))
            != self._time(method, target, runs, lines, tuned=tuned)
        ]
        remarks = [sustained_text(later), *(_equal_rounds(target, shown, tuned=tuned) for target in self.targets)]
        return [TextBlock(text) for text in (*remarks, _endings(shown, tuned=tuned)) if text]


def _equal_rounds(target: float, shown: Shown, *, tuned: bool) -> str:
    """Where SRPFL needs as many rounds as FedRep on every seed, a gain in time says nothing of learning."""
    rounds = {
        method.title: {run.seed: round_reaching(scores_of(run, tuned=tuned), target) for run in runs}
        for method, runs in shown
    }
    fedrep = rounds.get(FEDREP.title)
    alike = [title for title, found in rounds.items() if title.startswith("SRPFL") and found == fedrep]
    if not alike or not any(fedrep.values() if fedrep else ()):
        return ""
    return (
        f"At {target:g} these methods need as many rounds as FedRep on every seed, and gain only by rounds that wait"
        f" for fewer clients: {'; '.join(alike)}."
    )


def _endings(shown: Shown, *, tuned: bool) -> str:
    """Who ends higher than FedRep, by last scores."""
    last = {
        method.title: {run.seed: score_at(scores_of(run, tuned=tuned), -1) for run in runs} for method, runs in shown
    }
    fedrep = last.pop(FEDREP.title, {})
    ahead = [
        f"{title} {points_text(points, of=len(scores))}"
        for title, scores in last.items()
        if (points := points_ahead(scores, fedrep))
    ]
    return f"Last scores less FedRep's, in points and paired by seed: {'; '.join(ahead)}." if ahead else ""
