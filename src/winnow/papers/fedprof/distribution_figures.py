"""Figures 3, 4, 9 and 10 on the page: histograms with fitted normal curves, Q–Q plots, and how normal it all is."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

from msgspec.structs import replace

from winnow.papers.fedprof.representation_samples import setup_of
from winnow.papers.figures import histogram_figure, quantile_plots
from winnow.papers.normality_measures import LILLIEFORS_FACTOR
from winnow.papers.page_blocks import FigureBlock, PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem, ReproductionOptions
from winnow.papers.result_json_lines import DistributionResultLine, ResultLines, distribution_result_lines
from winnow.report.number_format import number_text

MEASURES = (
    "D is the largest distance between the sample's and the fitted normal distribution function (Lilliefors' statistic;"
    " at the 5 % level normality is rejected above the limit, 0.895/√n); r is the correlation of the Q–Q plot."
)


@dataclass(frozen=True, kw_only=True)
class DistributionFigure(PaperItem):
    """A figure of distributions, measured on trained networks rather than taken from federated runs."""

    setup: str
    about: str
    measurement: Callable[[ReproductionOptions], Iterable[DistributionResultLine]]
    heavy: bool = False
    network: bool = True
    """Whether it is about a network that is trained first."""

    @property
    def needs_gpu(self) -> bool:
        return self.heavy

    def data_sets(self, wanted: ReproductionOptions) -> set[str]:
        return {setup_of(self.setup, wanted).data.name}

    def measured(self, wanted: ReproductionOptions, lines: ResultLines) -> bool:
        return bool(distribution_result_lines(lines, self.name))

    def measure(self, wanted: ReproductionOptions, lines: ResultLines) -> list[DistributionResultLine]:
        epochs = setup_of(self.setup, wanted).rounds if self.network else 0
        return [replace(line, epochs=epochs, sets=wanted.sets) for line in self.measurement(wanted)]

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        found = distribution_result_lines(lines, self.name)
        if not found:
            return []
        return [
            TextBlock(" ".join([self.about, *self._training(found), *_deviations(found)])),
            FigureBlock(
                histogram_figure(found), "Densities and normal distributions with the same mean and standard deviation"
            ),
            FigureBlock(quantile_plots(found), "Q–Q plots; points of a normal distribution lie on the line"),
            TableBlock(MEASURES, ("Panels", "n", "Mean", "Deviation", "D", "Limit", "Below it", "r"), _summary(found)),
        ]

    def _training(self, lines: Sequence[DistributionResultLine]) -> list[str]:
        """How the training differed from the set-up's."""
        epochs, planned = lines[0].epochs, setup_of(self.setup, ReproductionOptions()).rounds
        if epochs in (0, planned):
            return []
        changed = f", with {', '.join(lines[0].sets)}" if lines[0].sets else ""
        return [f"Trained for {epochs} epochs{changed}, where the set-up has {planned}."]


def _deviations(lines: Sequence[DistributionResultLine]) -> list[str]:
    """How much wider noisy samples are spread than clean ones, row by row; where there are both."""
    by_row: dict[str, dict[str, list[float]]] = {}
    for line in lines:
        by_row.setdefault(line.row, {}).setdefault(line.series, []).append(line.sd)
    ratios = [
        f"{_mean(series['noisy']) / _mean(series['clean']):.2f} {row}"
        for row, series in by_row.items()
        if {"noisy", "clean"} <= series.keys() and _mean(series["clean"])
    ]
    return [f"Deviations of noisy images relative to clean ones: {', '.join(ratios)}."] if ratios else []


def _summary(lines: Sequence[DistributionResultLine]) -> list[list[str]]:
    """One row a row of panels and series: means over its panels."""
    groups: dict[tuple[str, str], list[DistributionResultLine]] = {}
    for line in lines:
        groups.setdefault((line.row, line.series), []).append(line)
    return [
        [
            f"{row}, {series}",
            number_text(float(group[0].samples)),
            number_text(_mean([line.mean for line in group])),
            number_text(_mean([line.sd for line in group])),
            f"{_mean([line.distance for line in group]):.3f}",
            f"{LILLIEFORS_FACTOR / sqrt(group[0].samples):.3f}",
            f"{sum(line.distance < LILLIEFORS_FACTOR / sqrt(line.samples) for line in group)} of {len(group)}",
            f"{_mean([line.correlation for line in group]):.3f}",
        ]
        for (row, series), group in groups.items()
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
