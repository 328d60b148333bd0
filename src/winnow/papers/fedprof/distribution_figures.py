"""Figures 3, 4, 9 and 10 on the page: histograms with fitted normal curves, Q–Q plots, and how normal it all is."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

from winnow.papers.fedprof.package_files import read_note
from winnow.papers.fedprof.representation_samples import setup_of
from winnow.papers.figures import histogram_figure, quantile_plots
from winnow.papers.normality import LILLIEFORS_FACTOR
from winnow.papers.page_blocks import FigureBlock, PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem, ReproductionOptions
from winnow.papers.result_lines import DistributionResultLine, ResultLines, distribution_result_lines
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

    @property
    def needs_gpu(self) -> bool:
        return self.heavy

    def data_sets(self, wanted: ReproductionOptions) -> set[str]:
        return {setup_of(self.setup, wanted).data.name}

    def measured(self, wanted: ReproductionOptions, lines: ResultLines) -> bool:
        return bool(distribution_result_lines(lines, self.name))

    def measure(self, wanted: ReproductionOptions, lines: ResultLines) -> list[DistributionResultLine]:
        return list(self.measurement(wanted))

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        found = distribution_result_lines(lines, self.name)
        if not found:
            return []
        return [
            TextBlock(f"{self.about} {read_note(self.name)}".strip()),
            FigureBlock(
                histogram_figure(found), "Densities and normal distributions with the same mean and standard deviation"
            ),
            FigureBlock(quantile_plots(found), "Q–Q plots; points of a normal distribution lie on the line"),
            TableBlock(MEASURES, ("Panels", "n", "Mean", "Deviation", "D", "Limit", "Below it", "r"), _summary(found)),
        ]


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
