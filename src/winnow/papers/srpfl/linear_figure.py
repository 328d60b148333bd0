"""The linear case: theorem 4.6's speed-up against simulation, the contraction, and where it ends (section 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
import plotly.graph_objects as go

from winnow.papers.figures import GREY
from winnow.papers.page_blocks import FigureBlock, HeadingBlock, PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem, ReproductionOptions
from winnow.papers.result_json_lines import LinearCaseResultLine, ResultLines, linear_case_result_lines, rounded
from winnow.papers.srpfl.linear_case import LinearCase
from winnow.papers.srpfl.linear_speedup import (
    FEDREP_ROUNDS,
    TARGET_FACTOR,
    SpeedupMeasurement,
    doubling_stages,
    floor,
    measure,
    speedup_bound,
)
from winnow.report import MeanAndSd
from winnow.report.colours import colour, translucent
from winnow.report.figures import apply_layout, set_round_axis
from winnow.report.number_format import mean_sd_text

POPULATIONS = tuple(2**power for power in range(6, 13))
ABOUT = (
    "Algorithm 2 with d = 40, k = 2, m = 20 fresh samples a client and round, noise of sd 1, a rate of 0.1 and"
    " n₀ = 16; times are exponential, drawn anew each round, without communication. Stages last as long as the paper's"
    f" analysis says. The target is {TARGET_FACTOR:g} times the distance at which FedRep settles. The time of the"
    " start, the same for both, is not counted, as in the theorem. Seeds are the same for all populations."
)
FEW_STARTERS_TEXT = (
    "The first n₀ clients estimate the start. So it does not depend on N, as the theorem assumes, which counts FedRep's"
    " rounds from a distance of one."
)
ALL_STARTERS_TEXT = (
    "All N clients estimate the start, as algorithm 2 has it. The more clients there are the nearer is the start, so"
    " that FedRep's rounds do not grow with N, and less is left to gain."
)
HEADER = ("Clients", "Start", "Floor", "Predicted", "Rounds", "Time, FedRep", "Time, SRPFL", "Ratio", "Bound")


@dataclass(frozen=True, kw_only=True)
class LinearFigure(PaperItem):
    """Both algorithms for several populations and seeds, from a start by few clients and from one by all."""

    populations: tuple[int, ...] = POPULATIONS

    def measured(self, wanted: ReproductionOptions, lines: ResultLines) -> bool:
        return not self._missing(wanted, lines)

    def measure(self, wanted: ReproductionOptions, lines: ResultLines) -> list[LinearCaseResultLine]:
        rounds = wanted.rounds or FEDREP_ROUNDS
        return [self._line(case, seed, measure(case, seed, rounds)) for case, seed in self._missing(wanted, lines)]

    def _missing(self, wanted: ReproductionOptions, lines: ResultLines) -> list[tuple[LinearCase, int]]:
        known = {(line.clients, line.initial_clients, line.seed) for line in linear_case_result_lines(lines, self.name)}
        return [
            (LinearCase(clients=clients, initial_clients=initial_clients), seed)
            for clients in self.populations
            for initial_clients in (LinearCase.first_stage_clients, clients)
            for seed in range(wanted.seeds)
            if (clients, initial_clients, seed) not in known
        ]

    def _line(self, case: LinearCase, seed: int, found: SpeedupMeasurement) -> LinearCaseResultLine:
        drawn = seed == 0 and case.clients == self.populations[-1] and case.initial_clients == case.first_stage_clients
        theirs, ours = found.fedrep.first_round_below(found.target), found.srpfl.first_round_below(found.target)
        assert theirs is not None, "no floor is higher than all distances"
        return LinearCaseResultLine(
            item=self.name,
            clients=case.clients,
            initial_clients=case.initial_clients or case.clients,
            seed=seed,
            start=round(float(found.fedrep.distances[0]), 5),
            floor=round(found.floor, 6),
            predicted=round(floor(case, case.clients), 6),
            fedrep_rounds=theirs,
            fedrep_seconds=round(float(found.fedrep.seconds[theirs]), 3),
            srpfl_rounds=ours,
            srpfl_seconds=None if ours is None else round(float(found.srpfl.seconds[ours]), 3),
            fedrep=rounded(found.fedrep.distances, 5) if drawn else (),
            srpfl=rounded(found.srpfl.distances, 5) if drawn else (),
        )

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        found = sorted(linear_case_result_lines(lines, self.name), key=lambda line: (line.clients, line.seed))
        if not found:
            return []
        few = [line for line in found if line.initial_clients < line.clients]
        blocks: list[PageBlock] = [TextBlock(ABOUT), *self._part("Start by n₀ clients", FEW_STARTERS_TEXT, few)]
        blocks += [
            FigureBlock(contraction_figure(line), f"N = {line.clients}: the distance by round; dashed, the target")
            for line in few
            if line.fedrep
        ]
        blocks.append(FigureBlock(floor_figure(few), "FedRep's final distance by population, and what is predicted"))
        return [
            *blocks,
            *self._part("Start by all clients", ALL_STARTERS_TEXT, [line for line in found if line not in few]),
        ]

    def _part(self, title: str, about: str, found: Sequence[LinearCaseResultLine]) -> list[PageBlock]:
        seeds = len({line.seed for line in found})
        caption = f"Mean ± sd over {seeds} seeds. The bound is the theorem's (equation 248)."
        rows = [_row([line for line in found if line.clients == clients]) for clients in _populations(found)]
        blocks: list[PageBlock] = [HeadingBlock(title), TextBlock(about), TableBlock(caption, HEADER, rows)]
        fitted = fit_ratios(found)
        if fitted is None:
            return blocks
        said = (
            f"Least squares: ratio = {fitted.constant:.3f} {fitted.slope:+.3f} / log N"
            f" (slope ± {fitted.error:.3f}, R² = {fitted.r2:.2f} over populations' means)."
        )
        return [
            *blocks,
            TextBlock(said),
            TextBlock(_early(found)),
            FigureBlock(ratio_figure(found, fitted), f"{title}: SRPFL's time over FedRep's"),
        ]


@dataclass(frozen=True, kw_only=True)
class InverseLogFit:
    """constant + slope / log N, with the slope's standard error."""

    constant: float
    slope: float
    error: float
    r2: float

    def at(self, clients: int) -> float:
        return self.constant + self.slope / log(clients)


def fit_ratios(found: Sequence[LinearCaseResultLine]) -> InverseLogFit | None:
    """The ratio against 1/log N, all runs alike; R² is of the populations' means. None where there is too little."""
    pairs = [(1 / log(line.clients), line.ratio) for line in found if line.ratio is not None]
    if len({x for x, _ in pairs}) < 3:
        return None
    x, y = np.array(pairs).T
    (slope, constant), covariance = np.polyfit(x, y, 1, cov=True)
    at = np.unique(x)
    means = np.array([y[x == one].mean() for one in at])
    left, all_of_it = ((means - constant - slope * at) ** 2).sum(), ((means - means.mean()) ** 2).sum()
    error = float(np.sqrt(covariance[0, 0]))
    return InverseLogFit(constant=float(constant), slope=float(slope), error=error, r2=float(1 - left / all_of_it))


def _early(found: Sequence[LinearCaseResultLine]) -> str:
    """Half of the clients settle at √2 times the floor, above the target: what gets there with them has been lucky."""
    late = [line for line in found if line.srpfl_rounds is not None and line.srpfl_rounds > _doubling(line.clients)]
    by_population = [(n, MeanAndSd.of(line.ratio for line in late if line.clients == n)) for n in _populations(found)]
    means = ", ".join(f"{mean_sd_text(spread, 3)} (N = {clients})" for clients, spread in by_population)
    return (
        f"In {len(found) - len(late)} of {len(found)} problems SRPFL did not reach the target in its last stage: it had"
        f" met it before by chance, or never did. Without these the ratios are {means}."
    )


def _doubling(clients: int) -> int:
    """The rounds before the last stage."""
    return sum(rounds for _, rounds in doubling_stages(LinearCase(clients=clients)))


def _populations(found: Sequence[LinearCaseResultLine]) -> list[int]:
    return sorted({line.clients for line in found})


def _row(found: Sequence[LinearCaseResultLine]) -> list[str]:
    clients = found[0].clients
    rounds = [MeanAndSd.of(line.fedrep_rounds for line in found), MeanAndSd.of(line.srpfl_rounds for line in found)]
    return [
        str(clients),
        mean_sd_text(MeanAndSd.of(line.start for line in found), 2),
        mean_sd_text(MeanAndSd.of(line.floor for line in found), 4),
        f"{found[0].predicted:.4f}",
        " and ".join(mean_sd_text(spread, 0) for spread in rounds),
        mean_sd_text(MeanAndSd.of(line.fedrep_seconds for line in found), 0),
        mean_sd_text(MeanAndSd.of(line.srpfl_seconds for line in found), 1),
        mean_sd_text(MeanAndSd.of(line.ratio for line in found), 3),
        f"{speedup_bound(clients):.2f}",
    ]


def ratio_figure(found: Sequence[LinearCaseResultLine], fitted: InverseLogFit) -> go.Figure:
    """Every seed, the means with their deviations, and the fitted curve."""
    figure, populations = go.Figure(), _populations(found)
    known = [line for line in found if line.ratio is not None]
    spreads = {n: MeanAndSd.of(line.ratio for line in known if line.clients == n) for n in populations}
    seen = {n: spread for n, spread in spreads.items() if spread is not None}
    dots = {"color": translucent(colour(0), 0.4), "size": 5}
    x, y = [line.clients for line in known], [line.ratio for line in known]
    figure.add_trace(go.Scatter(x=x, y=y, mode="markers", name="a seed", marker=dots))
    figure.add_trace(
        go.Scatter(
            x=list(seen),
            y=[spread.mean for spread in seen.values()],
            error_y={"array": [spread.sd or 0.0 for spread in seen.values()]},
            mode="markers",
            name="mean ± sd",
            marker={"color": colour(0), "size": 9},
        )
    )
    curve = go.Scatter(x=populations, y=[fitted.at(n) for n in populations], mode="lines", name="a + b / log N")
    figure.add_trace(curve.update(line={"color": colour(1), "width": 2}))
    figure.update_xaxes(type="log", title="Clients N", tickvals=populations)
    figure.update_yaxes(title="Time of SRPFL / time of FedRep", rangemode="tozero")
    return apply_layout(figure, height=380)


def contraction_figure(line: LinearCaseResultLine) -> go.Figure:
    """The principal-angle distance by round: both fall alike until few participants settle, and doubling goes on."""
    figure = go.Figure()
    for index, (name, distances) in enumerate((("SRPFL", line.srpfl), ("FedRep", line.fedrep))):
        look = {"color": colour(index), "width": 2}
        figure.add_trace(go.Scatter(x=np.arange(len(distances)), y=distances, mode="lines", name=name, line=look))
    figure.add_hline(y=TARGET_FACTOR * line.floor, line={"dash": "dash", "width": 1, "color": GREY})
    set_round_axis(figure)
    figure.update_yaxes(type="log", title="dist(B, B*)")
    return apply_layout(figure, height=380)


def floor_figure(found: Sequence[LinearCaseResultLine]) -> go.Figure:
    """FedRep's floor by population, which falls with √N (equation 10)."""
    figure, first = go.Figure(), {line.clients: line for line in found}
    dots = {"color": colour(1), "size": 7}
    x, y = [line.clients for line in found], [line.floor for line in found]
    figure.add_trace(go.Scatter(x=x, y=y, mode="markers", name="measured", marker=dots))
    predicted = [line.predicted for line in first.values()]
    look = {"color": GREY, "width": 1.5}
    figure.add_trace(go.Scatter(x=list(first), y=predicted, mode="lines", name="predicted", line=look))
    figure.update_xaxes(type="log", title="Clients N", tickvals=list(first))
    figure.update_yaxes(type="log", title="dist(B, B*) at the end")
    return apply_layout(figure, height=340)
