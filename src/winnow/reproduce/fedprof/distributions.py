"""Figures 3, 4, 9 and 10 on the page: histograms with fitted normal curves, Q–Q plots, and how normal it all is."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

from winnow.report.numbers import number_text
from winnow.reproduce.blocks import Block, Drawing, Grid, Text
from winnow.reproduce.drawing import histograms, quantile_plots
from winnow.reproduce.fedprof.content import note
from winnow.reproduce.fedprof.representations import setup_of
from winnow.reproduce.lines import Lines, SampleLine, samples_of
from winnow.reproduce.normality import LILLIEFORS
from winnow.reproduce.paper import Piece, Wanted

MEASURES = (
    "D is the largest distance between the sample's and the fitted normal distribution function (Lilliefors' statistic;"
    " at the 5 % level normality is rejected above the limit, 0.895/√n); r is the correlation of the Q–Q plot."
)


@dataclass(frozen=True, kw_only=True)
class DistributionFigure(Piece):
    """A figure of distributions, measured on trained networks rather than taken from federated runs."""

    setup: str
    about: str
    measurement: Callable[[Wanted], Iterable[SampleLine]]
    heavy: bool = False

    @property
    def wants_accelerator(self) -> bool:
        return self.heavy

    def data_sets(self, wanted: Wanted) -> set[str]:
        return {setup_of(self.setup, wanted).data.name}

    def measured(self, wanted: Wanted, lines: Lines) -> bool:
        return bool(samples_of(lines, self.name))

    def measure(self, wanted: Wanted, lines: Lines) -> list[SampleLine]:
        return list(self.measurement(wanted))

    def body(self, lines: Lines) -> list[Block]:
        found = samples_of(lines, self.name)
        if not found:
            return []
        return [
            Text(f"{self.about} {note(self.name)}".strip()),
            Drawing(histograms(found), "Densities, and the normal distributions with the same means and deviations"),
            Drawing(quantile_plots(found), "Q–Q plots: on the line, a distribution is normal"),
            Grid(MEASURES, ("Panels", "n", "Mean", "Deviation", "D", "Limit", "Below it", "r"), _summary(found)),
        ]


def _summary(lines: Sequence[SampleLine]) -> list[list[str]]:
    """One row a row of panels and series: means over its panels."""
    groups: dict[tuple[str, str], list[SampleLine]] = {}
    for line in lines:
        groups.setdefault((line.row, line.series), []).append(line)
    return [
        [
            f"{row}, {series}",
            number_text(float(group[0].samples)),
            number_text(_mean([line.mean for line in group])),
            number_text(_mean([line.sd for line in group])),
            f"{_mean([line.distance for line in group]):.3f}",
            f"{LILLIEFORS / sqrt(group[0].samples):.3f}",
            f"{sum(line.distance < LILLIEFORS / sqrt(line.samples) for line in group)} of {len(group)}",
            f"{_mean([line.correlation for line in group]):.3f}",
        ]
        for (row, series), group in groups.items()
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
