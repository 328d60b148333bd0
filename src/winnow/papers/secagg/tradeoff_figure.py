"""Figure 2: accuracy against the bytes that a client sends in a round."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean

import plotly.graph_objects as go

from winnow.config.resolve import resolve
from winnow.papers.figures import GREY
from winnow.papers.page_blocks import FigureBlock, PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem, PaperRun, ReproductionOptions
from winnow.papers.result_json_lines import ResultLine, ResultLines, RunResultLine, TrafficResultLine, run_result_lines
from winnow.papers.secagg.compared_compressions import CURVES, UNCOMPRESSED, CompressionCode
from winnow.report import MeanAndSd
from winnow.report.colours import colour
from winnow.report.figures import apply_layout
from winnow.report.number_format import MISSING, mean_sd_text
from winnow.report.paired_differences import MeanAndError, difference_text

LAST_ROUNDS = 10
"""Accuracy is the mean of so many last rounds: single rounds differ by more than codes do."""


@dataclass(frozen=True, kw_only=True)
class TradeOffFigure(PaperItem):
    """A panel: one federation, and each code in it."""

    preset: str
    about: str
    codes: tuple[CompressionCode, ...]

    def run(self, code: CompressionCode, seed: int, wanted: ReproductionOptions) -> PaperRun:
        sets = (*code.sets, *wanted.sets)
        return PaperRun(
            item=self.name,
            algorithm=code.name,
            experiment=resolve(self.preset, sets=sets, seed=seed, rounds=wanted.rounds),
        )

    def runs(self, wanted: ReproductionOptions) -> list[PaperRun]:
        return [self.run(code, seed, wanted) for code in self.codes for seed in range(wanted.seeds)]

    def measured(self, wanted: ReproductionOptions, lines: ResultLines) -> bool:
        return all(self.uplink(code, lines) for code in self.codes)

    def measure(self, wanted: ReproductionOptions, lines: ResultLines) -> Sequence[ResultLine]:
        """The bytes of the codes that lack them, counted between a server and sites that are processes of their own."""
        from winnow.papers.secagg.traffic_measurement import measure_traffic  # noqa: PLC0415 - takes gRPC, an extra

        missing = [code for code in self.codes if not self.uplink(code, lines)]
        return measure_traffic(self.name, self.preset, missing, wanted)

    def uplink(self, code: CompressionCode, lines: ResultLines) -> TrafficResultLine | None:
        found = lines.get((self.name, code.name, "uplink"))
        return found if isinstance(found, TrafficResultLine) else None

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        shown = [(code, runs) for code in self.codes if (runs := run_result_lines(lines, self.name, code.name))]
        if not shown:
            return []
        points = [(code, uplink, runs) for code, runs in shown if (uplink := self.uplink(code, lines))]
        drawing = (
            [FigureBlock(accuracy_bytes_figure(points), f"{self.preset}: accuracy against bytes")] if points else []
        )
        return [TextBlock(self.about), *drawing, self._table(shown, lines), *self._not_run(lines)]

    def _not_run(self, lines: ResultLines) -> list[TextBlock]:
        missing = [code for code in self.codes if not run_result_lines(lines, self.name, code.name)]
        names = "; ".join(f"{code.curve}: {code.title}" for code in missing)
        return [TextBlock(f"Not run: {names}.")] if missing else []

    def _table(self, shown: Sequence[tuple[CompressionCode, list[RunResultLine]]], lines: ResultLines) -> TableBlock:
        rounds = max(run.rounds for _, runs in shown for run in runs)
        caption = (
            f"Accuracy on held-out samples, mean of the last {LAST_ROUNDS} of {rounds} rounds, over seeds (in"
            " brackets). Bytes are those sent over the connection per client and round, protocol overhead"
            " included. The last column is paired by seed: mean difference ± its standard error."
        )
        header = ("Code", "Bytes up", "Ratio", "Accuracy", "Against none")
        return TableBlock(caption, header, list(self._rows(shown, lines)))

    def _rows(
        self, shown: Sequence[tuple[CompressionCode, list[RunResultLine]]], lines: ResultLines
    ) -> Iterator[list[str]]:
        plain, alone = self.uplink(UNCOMPRESSED, lines), run_result_lines(lines, self.name, UNCOMPRESSED.name)
        for code, runs in shown:
            sent = self.uplink(code, lines)
            ratio = f"{plain.up / sent.up:.1f}" if plain and sent else MISSING
            yield [
                f"{code.curve}: {code.title} ({len(runs)})"
                if code is not UNCOMPRESSED
                else f"{code.title} ({len(runs)})",
                f"{sent.up:,.0f}" if sent else MISSING,
                ratio,
                mean_sd_text(MeanAndSd.of(map(final_accuracy, runs)), 4),
                MISSING if code is UNCOMPRESSED else difference_text(accuracy_difference(runs, alone), 4),
            ]


def final_accuracy(run: RunResultLine) -> float | None:
    last = [value for value in run.trace[-LAST_ROUNDS:] if value is not None]
    return fmean(last) if last else None


def accuracy_difference(runs: Sequence[RunResultLine], others: Sequence[RunResultLine]) -> MeanAndError | None:
    """How much more accurate runs are than others on the same seeds."""
    known = {run.seed: final_accuracy(run) for run in others}
    return MeanAndError.of((final_accuracy(run), known.get(run.seed)) for run in runs)


def accuracy_bytes_figure(
    points: Sequence[tuple[CompressionCode, TrafficResultLine, Sequence[RunResultLine]]],
) -> go.Figure:
    """A curve a family of codes, from few bytes to many; bars are standard deviations over seeds."""
    figure = go.Figure()
    for index, curve in enumerate(CURVES):
        own = sorted((point for point in points if point[0].curve == curve), key=lambda point: point[1].up)
        spreads = [
            (code, sent.up, spread) for code, sent, runs in own if (spread := MeanAndSd.of(map(final_accuracy, runs)))
        ]
        figure.add_trace(
            go.Scatter(
                x=[up for _, up, _ in spreads],
                y=[spread.mean for *_, spread in spreads],
                error_y={"array": [spread.sd or 0.0 for *_, spread in spreads], "thickness": 1},
                text=[escape(code.title) for code, *_ in spreads],
                name="no code" if curve == CURVES[0] else curve,
                mode="lines+markers",
                marker={"size": 8, "symbol": "star" if curve == CURVES[0] else "circle"},
                line={"color": colour(index)},
                hovertemplate="%{text}<br>%{x:,.0f} bytes<br>%{y:.4f}<extra></extra>",
            )
        )
        if curve == CURVES[0] and spreads:
            figure.add_hline(y=spreads[0][2].mean, line={"dash": "dash", "width": 1, "color": GREY})
    figure.update_xaxes(type="log", title="Bytes sent per client and round")
    figure.update_yaxes(title="Accuracy")
    return apply_layout(figure, height=420)
