"""A figure whose curves are values by seed: measured as far as they are missing, drawn with their spread."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

import plotly.graph_objects as go

from winnow.core import ConfigError
from winnow.core.join_names import counted
from winnow.papers.page_blocks import FigureBlock, PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem, ReproductionOptions
from winnow.papers.result_json_lines import ResultLines, TruthResultLine
from winnow.report import MeanAndSd
from winnow.report.colours import PALETTE, colour
from winnow.report.figures import apply_layout
from winnow.report.number_format import mean_sd_text

Missing: TypeAlias = dict[tuple[str, int], tuple[float, ...]]
"""By series and seed, where it has to be measured."""


@dataclass(frozen=True, kw_only=True)
class PublishedNumber:
    """A number of the paper's text: of a series at a place."""

    series: str
    x: float
    text: str


@dataclass(frozen=True, kw_only=True)
class CurveItem(PaperItem):
    """Curves over `x`; `expected` has what arithmetic says, where it says anything."""

    about: str
    x_title: str
    y_title: str
    published: tuple[PublishedNumber, ...] = ()
    decimals: int = 3

    @abstractmethod
    def curves(self) -> list[tuple[str, tuple[float, ...]]]:
        """The series, and where each is measured."""

    @abstractmethod
    def measured_values(
        self, series: str, places: Sequence[float], seed: int, wanted: ReproductionOptions
    ) -> Iterable[float]:
        """The values of one series, a place each."""

    def expected(self, series: str, x: float) -> float | None:
        """What follows without any run."""
        return None

    def measured(self, wanted: ReproductionOptions, lines: ResultLines) -> bool:
        return not self.missing(wanted, lines)

    def measure(self, wanted: ReproductionOptions, lines: ResultLines) -> list[TruthResultLine]:
        if wanted.rounds is not None or wanted.sets:
            raise ConfigError("truth discovery has ten iterations and no settings here; leave out --rounds and --set")
        found = []
        for (series, seed), places in self.missing(wanted, lines).items():
            values = self.measured_values(series, places, seed, wanted)
            found += [
                TruthResultLine(item=self.name, series=series, x=x, seed=seed, value=round(value, 9))
                for x, value in zip(places, values, strict=True)
            ]
        return found

    def missing(self, wanted: ReproductionOptions, lines: ResultLines) -> Missing:
        return {
            (series, seed): places
            for series, places in self.curves()
            for seed in range(wanted.seeds)
            if any((self.name, series, f"{x:g}", str(seed)) not in lines for x in places)
        }

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        found = [line for line in lines.values() if isinstance(line, TruthResultLine) and line.item == self.name]
        if not found:
            return []
        spreads = {
            (series, x): MeanAndSd.of([line.value for line in found if (line.series, line.x) == (series, x)])
            for series, places in self.curves()
            for x in places
        }
        seeds = counted(len({line.seed for line in found}), "seed")
        caption = f"{self.y_title}. Mean ± sd over {seeds}" + self._caption_of_expected()
        rows = [
            [series, *(self._cell(series, x, spreads.get((series, x))) for x in self._places())]
            for series, _ in self.curves()
        ]
        header = [self.x_title, *(f"{x:g}" for x in self._places())]
        blocks: list[PageBlock] = [TextBlock(self.about), TableBlock(caption, header, rows)]
        if self.published:
            theirs = [
                [f"{at.series}, {at.x:g}", at.text, self._cell(at.series, at.x, spreads.get((at.series, at.x)))]
                for at in self.published
            ]
            blocks.append(TableBlock("Numbers in the paper's text.", ["where", "paper", "ours"], theirs))
        return [*blocks, FigureBlock(self._figure(spreads), self.title)]

    def _caption_of_expected(self) -> str:
        known = any(self.expected(series, x) is not None for series, places in self.curves() for x in places)
        return "; in brackets, what follows without a run." if known else "."

    def _places(self) -> list[float]:
        return sorted({x for _, places in self.curves() for x in places})

    def _cell(self, series: str, x: float, spread: MeanAndSd | None) -> str:
        expected = self.expected(series, x)
        text = mean_sd_text(spread, self.decimals)
        return text if expected is None else f"{text} ({expected:.{self.decimals}f})"

    def _figure(self, spreads: dict[tuple[str, float], MeanAndSd | None]) -> go.Figure:
        figure = go.Figure()
        for index, (series, places) in enumerate(self.curves()):
            known = [(x, spread) for x in places if (spread := spreads[series, x]) is not None]
            line = {"color": colour(index), "dash": "solid" if index < len(PALETTE) else "dot"}
            error = {"array": [spread.sd or 0.0 for _, spread in known], "thickness": 1}
            figure.add_trace(
                go.Scatter(
                    x=[x for x, _ in known],
                    y=[spread.mean for _, spread in known],
                    error_y=error,
                    name=escape(series),
                    line=line,
                )
            )
        figure.update_xaxes(title=self.x_title)
        figure.update_yaxes(title=self.y_title)
        return apply_layout(figure, height=380)
