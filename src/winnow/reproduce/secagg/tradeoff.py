"""Figure 2: accuracy against the bytes that a client sends in a round."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean

import plotly.graph_objects as go

from winnow.experiment.resolve import resolve
from winnow.report import Spread
from winnow.report.colours import colour
from winnow.report.figures import finish
from winnow.report.numbers import spread_text
from winnow.reproduce.blocks import Block, Drawing, Grid, Text
from winnow.reproduce.drawing import GREY
from winnow.reproduce.lines import Line, Lines, RunLine, UplinkLine, runs_of
from winnow.reproduce.paper import Piece, Run, Wanted
from winnow.reproduce.secagg.codes import CURVES, NO_CODE, Code

LAST = 10
"""Accuracy is the mean of so many last rounds: single rounds differ by more than codes do."""


@dataclass(frozen=True, kw_only=True)
class TradeOff(Piece):
    """A panel: one federation, and each code in it."""

    preset: str
    about: str
    codes: tuple[Code, ...]

    def run(self, code: Code, seed: int, wanted: Wanted) -> Run:
        sets = (*code.sets, *wanted.sets)
        return Run(
            of=self.name,
            algorithm=code.name,
            experiment=resolve(self.preset, sets=sets, seed=seed, rounds=wanted.rounds),
        )

    def runs(self, wanted: Wanted) -> list[Run]:
        return [self.run(code, seed, wanted) for code in self.codes for seed in range(wanted.seeds)]

    def measured(self, wanted: Wanted, lines: Lines) -> bool:
        return all(self.uplink(code, lines) for code in self.codes)

    def measure(self, wanted: Wanted, lines: Lines) -> Sequence[Line]:
        """The bytes of the codes that lack them, counted between a server and sites that are processes of their own."""
        from winnow.reproduce.secagg.counted import count_bytes  # noqa: PLC0415 - takes gRPC, an extra

        missing = [code for code in self.codes if not self.uplink(code, lines)]
        return count_bytes(self.name, self.preset, missing, wanted)

    def uplink(self, code: Code, lines: Lines) -> UplinkLine | None:
        found = lines.get((self.name, code.name, "uplink"))
        return found if isinstance(found, UplinkLine) else None

    def body(self, lines: Lines) -> list[Block]:
        shown = [(code, runs) for code in self.codes if (runs := runs_of(lines, self.name, code.name))]
        if not shown:
            return []
        points = [(code, uplink, runs) for code, runs in shown if (uplink := self.uplink(code, lines))]
        drawing = [Drawing(against_bytes(points), f"{self.preset}: accuracy against bytes")] if points else []
        return [Text(self.about), *drawing, self._table(shown, lines)]

    def _table(self, shown: Sequence[tuple[Code, list[RunLine]]], lines: Lines) -> Grid:
        rounds = max(run.rounds for _, runs in shown for run in runs)
        caption = (
            f"Accuracy on held-out samples, mean of the last {LAST} of {rounds} rounds, over seeds (in brackets). Bytes"
            " are those that crossed the connection, of a client in a round, with all that is around an update."
        )
        header = ("Code", "Bytes up", "Ratio", "Accuracy", "Against none")
        return Grid(caption, header, list(self._rows(shown, lines)))

    def _rows(self, shown: Sequence[tuple[Code, list[RunLine]]], lines: Lines) -> Iterator[list[str]]:
        plain, alone = self.uplink(NO_CODE, lines), runs_of(lines, self.name, NO_CODE.name)
        for code, runs in shown:
            sent = self.uplink(code, lines)
            ratio = f"{plain.up / sent.up:.1f}" if plain and sent else "–"
            yield [
                f"{code.curve}: {code.title} ({len(runs)})" if code is not NO_CODE else f"{code.title} ({len(runs)})",
                f"{sent.up:,.0f}" if sent else "–",
                ratio,
                spread_text(Spread.of(map(accuracy, runs)), 4),
                spread_text(difference(runs, alone), 4),
            ]


def accuracy(run: RunLine) -> float | None:
    last = [value for value in run.trace[-LAST:] if value is not None]
    return fmean(last) if last else None


def difference(runs: Sequence[RunLine], others: Sequence[RunLine]) -> Spread | None:
    """How much more accurate runs are than others on the same seeds."""
    known = {run.seed: accuracy(run) for run in others}
    pairs = ((accuracy(run), known.get(run.seed)) for run in runs)
    return Spread.of(own - other for own, other in pairs if own is not None and other is not None)


def against_bytes(points: Sequence[tuple[Code, UplinkLine, Sequence[RunLine]]]) -> go.Figure:
    """A curve a family of codes, from few bytes to many; bars are standard deviations over seeds."""
    figure = go.Figure()
    for index, curve in enumerate(CURVES):
        own = sorted((point for point in points if point[0].curve == curve), key=lambda point: point[1].up)
        spreads = [(code, sent.up, spread) for code, sent, runs in own if (spread := Spread.of(map(accuracy, runs)))]
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
    figure.update_xaxes(type="log", title="Bytes that a client sends in a round")
    figure.update_yaxes(title="Accuracy")
    return finish(figure, height=420)
