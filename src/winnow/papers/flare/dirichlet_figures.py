"""Figure 4: FedAvg under more and more heterogeneity, and four algorithms where it is largest."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from winnow.papers.figures import metric_curves
from winnow.papers.flare.tuned_methods import FEDAVG, METHODS, TUNING, TUNING_SEED
from winnow.papers.last_rounds import LAST_ROUNDS, last_score
from winnow.papers.page_blocks import FigureBlock, PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem, PaperRun, ReproductionOptions
from winnow.papers.result_json_lines import ResultLines, RunResultLine, run_result_lines
from winnow.report import MeanAndSd
from winnow.report.number_format import mean_sd_text

NOT_RUN = TextBlock("Not run: there are no records of it.")
SWEEP, COMPARISON = "fig4-alpha", "fig4-methods"
ALPHA = 0.1
"""Of the algorithms' comparison, and the preset's."""
ALPHAS = {1.0: 0.8854, 0.5: 0.8633, 0.3: 0.8350, ALPHA: FEDAVG.published}
"""α of the split, and FedAvg's final score in NVFlare's own example."""


@dataclass(frozen=True, kw_only=True)
class TuningTable(PaperItem):
    """Every algorithm's candidates, as many for each, on one seed that no figure shows."""

    @property
    def needs_gpu(self) -> bool:
        return True

    def runs(self, wanted: ReproductionOptions) -> list[PaperRun]:
        return [
            method.run(TUNING, method.candidate_name(index), sets, TUNING_SEED, wanted)
            for method in METHODS
            for index, sets in enumerate(method.candidates)
        ]

    def has_results(self, lines: ResultLines) -> bool:
        return any(score is not None for method in METHODS for score in method.tuning_scores(lines))

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        if not self.has_results(lines):
            return [NOT_RUN]
        rows = []
        for method in METHODS:
            chosen = method.chosen(lines)
            for sets, score in zip(method.candidates, method.tuning_scores(lines), strict=True):
                mark = " *" if sets == chosen else ""
                rows.append([method.title, ", ".join(sets), "–" if score is None else f"{score:.4f}{mark}"])
        caption = (
            f"Four candidates an algorithm at α = {ALPHA}, on seed {TUNING_SEED} (with a split, a network and batches"
            f" of its own; the images that are scored are the same). Mean over the last {LAST_ROUNDS} rounds; a star"
            " marks what the figures use."
        )
        return [TableBlock(caption, ["Algorithm", "Settings", "Accuracy"], rows)]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One curve of the figure: its runs belong to `item` and are called `run_name` there."""

    title: str
    item: str
    run_name: str
    published: float


@dataclass(frozen=True, kw_only=True)
class AccuracyFigure(PaperItem):
    """Accuracy by round, with final scores beside those of NVFlare's own example."""

    about: str

    @property
    def needs_gpu(self) -> bool:
        return True

    @abstractmethod
    def curves(self) -> list[Curve]:
        """What is drawn, in this order."""

    def has_results(self, lines: ResultLines) -> bool:
        return any(run_result_lines(lines, curve.item, curve.run_name) for curve in self.curves())

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        found = {curve: run_result_lines(lines, curve.item, curve.run_name) for curve in self.curves()}
        shown = {curve: runs for curve, runs in found.items() if runs}
        if not shown:
            return [TextBlock(self.about), NOT_RUN]
        rounds = sorted({run.rounds for runs in shown.values() for run in runs})
        lasted = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        caption = (
            f"{lasted} rounds; number of seeds in brackets; accuracy on the 10,000 official test images, mean ± sd:"
            f" over the last {LAST_ROUNDS} rounds, and the best round's. NVFlare's own example states one run's final"
            " score, after 50 rounds of 4 epochs with a larger network and augmented images."
        )
        return [
            TextBlock(self.about),
            FigureBlock(metric_curves({curve.title: runs for curve, runs in shown.items()}, "accuracy"), self.title),
            TableBlock(caption, HEADER, [_cells(curve, runs) for curve, runs in shown.items()]),
        ]


HEADER = ("", "Last rounds", "Best", "NVFlare's example")


def _cells(curve: Curve, runs: Sequence[RunResultLine]) -> list[str]:
    return [
        f"{curve.title} ({len(runs)})",
        mean_sd_text(MeanAndSd.of(map(last_score, runs)), 4),
        mean_sd_text(MeanAndSd.of(run.best for run in runs), 4),
        f"{curve.published:.4f}",
    ]


@dataclass(frozen=True, kw_only=True)
class HeterogeneitySweep(AccuracyFigure):
    """FedAvg by α; where the algorithms are compared, it is the same run."""

    def curves(self) -> list[Curve]:
        return [
            Curve(
                title=f"α = {alpha:g}",
                item=COMPARISON if alpha == ALPHA else SWEEP,
                run_name=FEDAVG.name if alpha == ALPHA else f"alpha-{alpha:g}",
                published=published,
            )
            for alpha, published in ALPHAS.items()
        ]

    def runs(self, wanted: ReproductionOptions) -> list[PaperRun]:
        chosen = FEDAVG.chosen(wanted.known)
        if chosen is None:
            return []
        return [
            FEDAVG.run(curve.item, curve.run_name, (*chosen, f"data.partition.alpha={alpha:g}"), seed, wanted)
            for seed in range(wanted.seeds)
            for alpha, curve in zip(ALPHAS, self.curves(), strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class AlgorithmComparison(AccuracyFigure):
    """Four algorithms on the same splits, each with its own candidate."""

    def curves(self) -> list[Curve]:
        return [
            Curve(title=each.title, item=COMPARISON, run_name=each.name, published=each.published) for each in METHODS
        ]

    def runs(self, wanted: ReproductionOptions) -> list[PaperRun]:
        return [
            method.run(COMPARISON, method.name, chosen, seed, wanted)
            for seed in range(wanted.seeds)
            for method in METHODS
            if (chosen := method.chosen(wanted.known)) is not None
        ]
