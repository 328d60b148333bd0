"""Figures 3 to 6: accuracy against total time; and the table of times to a target."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from winnow.config.resolve import resolve
from winnow.config.schema import Experiment
from winnow.learn.algorithm import Recipe
from winnow.papers.figures import GREY
from winnow.papers.page_blocks import FigureBlock, PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem, PaperRun, ReproductionOptions
from winnow.papers.result_json_lines import ResultLines, RunResultLine
from winnow.papers.srpfl.doubling_gain import speedup_blocks
from winnow.papers.srpfl.methods import (
    ALGORITHMS,
    AUTHORS_PROTOCOL,
    COMMUNICATION_COSTS,
    METHOD_PAIRS,
    METHODS,
    TUNE_EVERY,
    TUNING,
    ComparedMethod,
    mean_speedup,
)
from winnow.papers.srpfl.score_trace import (
    best_score,
    elapsed_seconds,
    rounds_text,
    score_at,
    scores_of,
    sustained_text,
    times_text,
)
from winnow.report import MeanAndSd
from winnow.report.colours import colour, translucent
from winnow.report.figures import apply_layout
from winnow.report.number_format import mean_sd_text


@dataclass(frozen=True, kw_only=True)
class AccuracyTimeFigure(PaperItem):
    """A panel column of one of figures 3 to 6: a preset, with the figure's kind of speeds and participation."""

    preset: str
    target: float
    settings: tuple[str, ...] = ()
    about: str
    heavy: bool = False

    @property
    def needs_gpu(self) -> bool:
        return self.heavy

    def unknown_algorithms(self) -> list[str]:
        return [name for name in ALGORITHMS if name not in Recipe.known]

    def runs(self, wanted: ReproductionOptions) -> list[PaperRun]:
        return [
            PaperRun(item=self.name, algorithm=algorithm, experiment=self._experiment(algorithm, seed, wanted))
            for algorithm in ALGORITHMS
            if algorithm in Recipe.known
            for seed in range(wanted.seeds)
        ]

    def _experiment(self, algorithm: str, seed: int, wanted: ReproductionOptions) -> Experiment:
        every = min(TUNE_EVERY, wanted.rounds or TUNE_EVERY)
        tuning = (*TUNING[algorithm], f"evaluation.tune_every={every}") if algorithm in TUNING else ()
        sets = (*self.settings, *tuning, f"target={self.target}", *wanted.sets)
        return resolve(self.preset, sets=sets, algorithm=algorithm, seed=seed, rounds=wanted.rounds)

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        shown, besides = (
            [(method, runs) for method in methods if (runs := method.runs(lines, self.name))]
            for methods in (METHODS, AUTHORS_PROTOCOL)
        )
        if not shown:
            return []
        caption = f"{self.preset}: mean accuracy on the local test sets against total time; dashed: the target"
        return [
            TextBlock(self.about),
            FigureBlock(accuracy_time_figure(shown, self.target), caption),
            TableBlock(self._caption(shown), _header("Best accuracy"), [self._row(*row) for row in shown + besides]),
            *_common_models(shown),
            *speedup_blocks(lines, self.name),
        ]

    def _caption(self, shown: Sequence[tuple[ComparedMethod, Sequence[RunResultLine]]]) -> str:
        return (
            f"{rounds_text([run for _, runs in shown for run in runs])} rounds; number of seeds in brackets; total time"
            f" to first reach {self.target:g} for three costs"
            " of communication."
            " FT, HF-MAML and the last rows show models that clients fine-tuned before evaluation; the last rows"
            " follow the protocol of the authors' code."
        )

    def _row(self, method: ComparedMethod, runs: Sequence[RunResultLine]) -> list[str]:
        times = [[method.seconds_to(self.target, run, cost) for run in runs] for cost in COMMUNICATION_COSTS]
        best = MeanAndSd.of(map(method.best, runs))
        return [f"{method.title} ({len(runs)})", mean_sd_text(best, 3), *map(times_text, times)]


@dataclass(frozen=True, kw_only=True)
class TimeToTargetTable(PaperItem):
    """How much sooner the doubling scheme is at the target, from the runs of the figures."""

    figures: tuple[AccuracyTimeFigure, ...]

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        first, sustained = (self._rows(lines, sustained=sustained) for sustained in (False, True))
        if not first:
            return []
        caption = "Total time of both methods and the speed-up of the first; mean ± sd over seeds."
        later = [" / ".join(row) for row, other in zip(sustained, first, strict=True) if row != other]
        return [TableBlock(caption, _header("Target"), first), TextBlock(sustained_text(later))]

    def _rows(self, lines: ResultLines, *, sustained: bool) -> list[list[str]]:
        return [
            [f"{figure.name}: {quick.title} and {slow.title}", f"{figure.target:g}", *cells]
            for figure in self.figures
            for quick, slow in METHOD_PAIRS
            if any(cells := [_compared(quick, slow, figure, cost, lines, sustained) for cost in COMMUNICATION_COSTS])
        ]


def _compared(
    quick: ComparedMethod,
    slow: ComparedMethod,
    figure: AccuracyTimeFigure,
    communication: float,
    lines: ResultLines,
    sustained: bool,
) -> str:
    times = [
        [
            method.seconds_to(figure.target, run, communication, sustained=sustained)
            for run in method.runs(lines, figure.name)
        ]
        for method in (quick, slow)
    ]
    if not all(times):
        return ""
    gain = mean_speedup(quick, slow, figure.target, communication, lines, figure.name, sustained=sustained)
    both = f"{times_text(times[0])} and {times_text(times[1])}"
    return both if gain is None else f"{both}: {mean_sd_text(gain, 2)} ×"


def _common_models(shown: Sequence[tuple[ComparedMethod, Sequence[RunResultLine]]]) -> list[TextBlock]:
    """What the curves of tuned models do not show, where no other curve does: the model that clients share."""
    untuned = {method.algorithm for method, _ in shown if not method.tuned}
    return [
        TextBlock(
            f"{method.title}'s common model, before clients tune it: best accuracy"
            f" {mean_sd_text(MeanAndSd.of(map(best_score, traces)), 3)}, last"
            f" {mean_sd_text(MeanAndSd.of(score_at(trace, -1) for trace in traces), 3)}."
        )
        for method, runs in shown
        if method.tuned and method.algorithm not in untuned
        for traces in [[scores_of(run, tuned=False) for run in runs]]
    ]


def _header(second: str) -> list[str]:
    return ["Method", second, *(f"Time, C.T. = {cost}" for cost in COMMUNICATION_COSTS)]


def accuracy_time_figure(shown: Sequence[tuple[ComparedMethod, Sequence[RunResultLine]]], target: float) -> go.Figure:
    """One panel a cost of communication: thin lines for seeds, bold ones through each round's mean time and score."""
    figure = make_subplots(
        rows=1,
        cols=len(COMMUNICATION_COSTS),
        shared_yaxes=True,
        horizontal_spacing=0.03,
        subplot_titles=[f"C.T. = {cost}" for cost in COMMUNICATION_COSTS],
    )
    for column, cost in enumerate(COMMUNICATION_COSTS, start=1):
        for method, runs in shown:
            for trace in _curves(method, runs, cost):
                trace.update(legendgroup=method.title, showlegend=trace.showlegend and column == 1)
                figure.add_trace(trace, row=1, col=column)
    figure.add_hline(y=target, line={"dash": "dash", "width": 1, "color": GREY})
    figure.update_xaxes(title="Total time", nticks=5)
    figure.update_yaxes(title="Accuracy", row=1, col=1)
    return apply_layout(figure, height=420).update_layout(legend={"y": 1.1}, margin={"t": 84})


def _curves(method: ComparedMethod, runs: Sequence[RunResultLine], communication: float) -> list[go.Scatter]:
    """Tuned or not, a run has one colour."""
    ink = colour(ALGORITHMS.index(method.algorithm))
    points = [(elapsed_seconds(run, communication), method.values(run)) for run in runs]
    shared = min(len(values) for _, values in points)
    mean = [np.mean([pair[axis][:shared] for pair in points], axis=0) for axis in (0, 1)]
    look = {"name": escape(method.title), "mode": "lines", "connectgaps": True}
    thin = {"color": translucent(ink, 0.3), "width": 1}
    dash = "dot" if method.tuned else "solid"
    seeds = [go.Scatter(x=x, y=y, line=thin, showlegend=False, **look) for x, y in points if len(points) > 1]
    bold = {"color": ink, "width": 2.5, "dash": dash}
    return [*seeds, go.Scatter(x=mean[0], y=mean[1], line=bold, showlegend=True, **look)]
