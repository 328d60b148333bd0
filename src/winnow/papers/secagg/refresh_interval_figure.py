"""Figure 3: how often the parameters of a code are renewed, and what that does to accuracy."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from winnow.papers.page_blocks import FigureBlock, PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem, PaperRun, ReproductionOptions
from winnow.papers.result_json_lines import ResultLines, run_result_lines
from winnow.papers.secagg.compared_compressions import CompressionCode
from winnow.papers.secagg.tradeoff_figure import TradeOffFigure, accuracy_difference, final_accuracy
from winnow.report import MeanAndSd
from winnow.report.colours import colour
from winnow.report.figures import apply_layout
from winnow.report.number_format import MISSING, mean_sd_text
from winnow.report.paired_differences import difference_text


@dataclass(frozen=True, kw_only=True)
class RefreshFigure(PaperItem):
    """Both panels: each row of codes is one code at each of the periods. Runs are shared with figure 2."""

    tradeoff: TradeOffFigure
    about: str
    periods: tuple[int, ...]
    panels: tuple[tuple[tuple[CompressionCode, ...], ...], ...]

    def runs(self, wanted: ReproductionOptions) -> list[PaperRun]:
        codes = [code for panel in self.panels for row in panel for code in row]
        return [self.tradeoff.run(code, seed, wanted) for code in codes for seed in range(wanted.seeds)]

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        rows = [row for panel in self.panels for row in panel]
        spreads = {code: self._spread(code, lines) for row in rows for code in row}
        if not any(spreads[code] for row in rows for code in row[1:]):
            return []
        table = [
            [f"{row[0].curve}: {row[0].title}", *(_cell(spreads[code]) for code in row), self._seldom(row, lines)]
            for row in rows
        ]
        intervals = [f"every {period} rounds" if period > 1 else "every round" for period in self.periods]
        caption = (
            "Accuracy, mean of the last rounds, over seeds (in brackets). The last column is paired by seed: mean"
            " difference ± its standard error."
        )
        return [
            TextBlock(self.about),
            FigureBlock(self._drawn(spreads), "Accuracy against the refresh interval"),
            TableBlock(caption, ("Code", *intervals, f"{intervals[-1]} against {intervals[0]}"), table),
        ]

    def _seldom(self, row: Sequence[CompressionCode], lines: ResultLines) -> str:
        """What the longest interval gains or loses against the shortest."""
        often, seldom = (run_result_lines(lines, self.tradeoff.name, code.name) for code in (row[0], row[-1]))
        return difference_text(accuracy_difference(seldom, often), 4)

    def _spread(self, code: CompressionCode, lines: ResultLines) -> MeanAndSd | None:
        return MeanAndSd.of(map(final_accuracy, run_result_lines(lines, self.tradeoff.name, code.name)))

    def _drawn(self, spreads: dict[CompressionCode, MeanAndSd | None]) -> go.Figure:
        figure = make_subplots(
            rows=1,
            cols=len(self.panels),
            horizontal_spacing=0.08,
            subplot_titles=[escape(panel[0][0].curve) for panel in self.panels],
        )
        for column, panel in enumerate(self.panels, start=1):
            for index, row in enumerate(panel):
                figure.add_trace(self._curve(row, spreads, colour(index)), row=1, col=column)
        figure.update_xaxes(type="log", title="Rounds between refreshes", tickvals=self.periods)
        figure.update_yaxes(title="Accuracy", row=1, col=1)
        return apply_layout(figure, height=380).update_layout(legend={"y": 1.1}, margin={"t": 84})

    def _curve(
        self, row: Sequence[CompressionCode], spreads: dict[CompressionCode, MeanAndSd | None], ink: str
    ) -> go.Scatter:
        known = [(period, spread) for period, code in zip(self.periods, row, strict=True) if (spread := spreads[code])]
        return go.Scatter(
            x=[period for period, _ in known],
            y=[spread.mean for _, spread in known],
            error_y={"array": [spread.sd or 0.0 for _, spread in known], "thickness": 1},
            name=escape(row[0].title),
            mode="lines+markers",
            line={"color": ink},
        )


def _cell(spread: MeanAndSd | None) -> str:
    return f"{mean_sd_text(spread, 4)} ({spread.count})" if spread else MISSING
