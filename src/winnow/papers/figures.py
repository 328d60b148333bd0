"""The figures of a reproduction, in the look of a report."""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots
from scipy.special import ndtri

from winnow.papers.normality_measures import QUANTILES, plotting_positions
from winnow.papers.result_json_lines import DistributionResultLine, RunResultLine
from winnow.report.colours import PALETTE, colour, translucent
from winnow.report.figures import apply_layout, set_round_axis

GREY = "#888888"
PANEL_HEIGHT = 150


def metric_curves(groups: Mapping[str, Sequence[RunResultLine]], metric: str, target: float | None = None) -> go.Figure:
    """A metric by round: thin lines for seeds, a bold one for their mean as far as all of them have come."""
    figure = go.Figure()
    for index, (name, runs) in enumerate(groups.items()):
        traces = [np.array(run.trace, np.float64) for run in runs if run.trace]  # None becomes nan: a gap
        for trace in traces if len(traces) > 1 else ():
            figure.add_trace(_curve(trace, name, translucent(colour(index), 0.3), width=1).update(showlegend=False))
        if traces:
            shared = min(map(len, traces))
            mean = np.mean([trace[:shared] for trace in traces], axis=0)
            dash = "solid" if index < len(PALETTE) else "dot"  # a second round through the colours
            figure.add_trace(_curve(mean, name, colour(index), width=2.5, dash=dash))
    if target is not None:
        figure.add_hline(y=target, line={"dash": "dash", "width": 1, "color": GREY})
    figure.update_layout(yaxis_title=escape(metric), hovermode="closest")
    set_round_axis(figure)
    return apply_layout(figure, height=380)


def _curve(values: NDArray[np.float64], name: str, ink: str, *, width: float, dash: str = "solid") -> go.Scatter:
    line = {"color": ink, "width": width, "dash": dash}
    return go.Scatter(x=np.arange(len(values)), y=values, name=escape(name), mode="lines", line=line)


def histogram_figure(lines: Sequence[DistributionResultLine]) -> go.Figure:
    """One panel a row and column of the figure: densities, each with its fitted normal curve."""
    grid = _Grid(lines)
    for line in lines:
        middles = np.linspace(line.low, line.high, 2 * len(line.density) + 1)[1::2]
        bars = go.Bar(x=middles, y=line.density, width=(line.high - line.low) / len(line.density))
        grid.add(
            bars.update(marker={"color": translucent(grid.ink(line), 0.45), "line": {"width": 0}}), line, legend=True
        )
        if not line.sd:
            continue
        at = np.linspace(line.low, line.high, 60)
        bell = np.exp(-0.5 * ((at - line.mean) / line.sd) ** 2) / (line.sd * np.sqrt(2 * np.pi))
        grid.add(_smooth(at, bell, grid.ink(line)), line)
    grid.figure.update_layout(barmode="overlay", bargap=0)
    grid.figure.update_yaxes(showticklabels=False, showgrid=False)
    return grid.finished()


def quantile_plots(lines: Sequence[DistributionResultLine]) -> go.Figure:
    """The same panels as Q–Q plots: standardised quantiles over those of a normal distribution, which is the line."""
    grid, normal = _Grid(lines), ndtri(plotting_positions(QUANTILES))
    for line in lines:
        points = go.Scatter(x=normal, y=line.quantiles, mode="markers", marker={"size": 4, "color": grid.ink(line)})
        grid.add(points, line, legend=True)
        grid.add(_smooth(normal[[0, -1]], normal[[0, -1]], GREY), line)
    return grid.finished()


def _smooth(x: NDArray[np.float64], y: NDArray[np.float64], ink: str) -> go.Scatter:
    return go.Scatter(x=x, y=y, mode="lines", line={"color": ink, "width": 1.5}, hoverinfo="skip")


class _Grid:
    """Panels by row and column, one colour a series."""

    def __init__(self, lines: Sequence[DistributionResultLine]) -> None:
        self._places = {
            row: list(dict.fromkeys(line.column for line in lines if line.row == row)) for row in _rows(lines)
        }
        self._series = list(dict.fromkeys(line.series for line in lines))
        self._named: set[str] = set()
        columns = max(map(len, self._places.values()))
        titles = [f"{name}" for names in self._places.values() for name in names + [""] * (columns - len(names))]
        self.figure = make_subplots(
            rows=len(self._places),
            cols=columns,
            subplot_titles=[escape(title) for title in titles],
            row_titles=[escape(row) for row in self._places],
            horizontal_spacing=0.02,
            vertical_spacing=min(0.12, 0.4 / len(self._places)),
        )

    def ink(self, line: DistributionResultLine) -> str:
        return colour(self._series.index(line.series))

    def add(self, trace: go.Bar | go.Scatter, line: DistributionResultLine, *, legend: bool = False) -> None:
        shown = legend and line.series not in self._named
        self._named |= {line.series} if legend else set()
        trace.update(name=escape(line.series), showlegend=shown, legendgroup=line.series)
        row = list(self._places).index(line.row)
        self.figure.add_trace(trace, row=row + 1, col=self._places[line.row].index(line.column) + 1)

    def finished(self) -> go.Figure:
        self.figure.update_annotations(font_size=11)
        self.figure.update_xaxes(tickfont_size=9, nticks=4)
        self.figure.update_yaxes(tickfont_size=9, nticks=4)
        figure = apply_layout(self.figure, height=120 + PANEL_HEIGHT * len(self._places))
        return figure.update_layout(
            legend={"y": 1 + 40 / (PANEL_HEIGHT * len(self._places))}, margin={"l": 36, "r": 36, "t": 72, "b": 32}
        )


def _rows(lines: Sequence[DistributionResultLine]) -> list[str]:
    return list(dict.fromkeys(line.row for line in lines))
