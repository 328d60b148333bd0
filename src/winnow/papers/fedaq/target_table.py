"""Rounds, bits and seconds to an accuracy: one setting of the paper, all methods in one table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from winnow.config.resolve import resolve
from winnow.learn.models import build_model
from winnow.learn.stack import ModelState
from winnow.learn.stack.trainable_state import model_state
from winnow.papers.fedaq.cost_curves import accuracy_cost_figure
from winnow.papers.fedaq.round_time import OVERHEAD, TimedSetting, is_accelerated, transfer_seconds
from winnow.papers.fedaq.table_rows import METHODS, Method
from winnow.papers.page_blocks import FigureBlock, PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem, PaperRun, ReproductionOptions
from winnow.papers.result_json_lines import ResultLines, RunResultLine, run_result_lines
from winnow.report import MeanAndSd
from winnow.report.number_format import mean_sd_text

CLASSES = 10
SEEDS = 3
"""What a table should have at least."""


@dataclass(frozen=True, kw_only=True)
class RoundCost:
    """What a round costs: bits that a client sends, and seconds with the downlink as it is or quantised, too."""

    bits: float
    seconds: float
    paper_seconds: float


@dataclass(frozen=True, kw_only=True)
class TargetTable(PaperItem):
    """A setting: a preset, perhaps with another split."""

    preset: str
    target: float
    sample_shape: tuple[int, ...]
    timed: TimedSetting
    about: str
    settings: tuple[str, ...] = ()
    heavy: bool = False

    @property
    def needs_gpu(self) -> bool:
        return self.heavy

    def runs(self, wanted: ReproductionOptions) -> list[PaperRun]:
        return [self._run(method, seed, wanted) for method in METHODS for seed in range(wanted.seeds)]

    def _run(self, method: Method, seed: int, wanted: ReproductionOptions) -> PaperRun:
        sets = (*self.settings, *method.sets, *wanted.sets)
        experiment = resolve(self.preset, sets=sets, algorithm=method.algorithm, seed=seed, rounds=wanted.rounds)
        return PaperRun(item=self.name, algorithm=method.name, experiment=experiment)

    def model(self) -> ModelState:
        return model_state(build_model(resolve(self.preset).model, self.sample_shape, CLASSES, seed=0))

    def round_cost(self, method: Method, model: ModelState) -> RoundCost:
        """By the paper's metric, with its devices and its computing time."""
        up, down, devices = method.uplink_bytes(model), method.downlink_bytes(model), self.timed.devices
        rest = self.timed.compute_seconds(accelerated=is_accelerated(method.name)) + OVERHEAD
        return RoundCost(
            bits=8 * up,
            seconds=transfer_seconds(down=devices * down, up=devices * up) + rest,
            paper_seconds=transfer_seconds(down=devices * up, up=devices * up) + rest,
        )

    def has_results(self, lines: ResultLines) -> bool:
        return any(run_result_lines(lines, self.name, method.name) for method in METHODS)

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        shown = [(method, runs) for method in METHODS if (runs := run_result_lines(lines, self.name, method.name))]
        if not shown:
            return [TextBlock(self.about), TextBlock("Not run: there are no records of it.")]
        missing = self._missing(lines)
        model = self.model()
        costs = {method.name: self.round_cost(method, model) for method in METHODS}
        curves = [(method.title, runs, costs[method.name].bits, costs[method.name].seconds) for method, runs in shown]
        return [
            TextBlock(self.about),
            FigureBlock(
                accuracy_cost_figure(curves, self.target),
                f"{self.preset}: accuracy against rounds, bits that a client sends, and seconds; dashed: the target",
            ),
            TableBlock(
                self._caption(shown), HEADER, [self._row(method, runs, costs[method.name]) for method, runs in shown]
            ),
            *([TextBlock(missing)] if missing else []),
        ]

    def _missing(self, lines: ResultLines) -> str:
        """What was not run, by the records."""
        seeds = {method.title: len(run_result_lines(lines, self.name, method.name)) for method in METHODS}
        none = [title for title, count in seeds.items() if not count]
        few = [f"{title} ({count})" for title, count in seeds.items() if 0 < count < SEEDS]
        parts = [f"Not run: {'; '.join(none)}." if none else ""]
        parts += [f"Fewer than {SEEDS} seeds: {'; '.join(few)}." if few else ""]
        return " ".join(filter(None, parts))

    def _caption(self, shown: Sequence[tuple[Method, Sequence[RunResultLine]]]) -> str:
        rounds = sorted({run.rounds for _, runs in shown for run in runs})
        lasted = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        return (
            f"{lasted} rounds; number of seeds in brackets; mean ± sd over the runs that reached {self.target:.2%}."
            " Bits are those that a client sends until then. Seconds follow the paper's metric: first with what Winnow"
            " sends down, which is not quantised, then with as much down as up, which is how the paper counts."
        )

    def _row(self, method: Method, runs: Sequence[RunResultLine], cost: RoundCost) -> list[str]:
        rounds = [first_reached(run.trace, self.target) for run in runs]
        paper = None if self.settings else self.timed.published.get(method.name)
        return [
            f"{method.title} ({len(runs)})",
            _reached(rounds, lambda spread: mean_sd_text(spread, 0 if len(rounds) == 1 else 1)),
            f"{paper.rounds}" if paper else "–",
            _reached(rounds, lambda spread: f"{spread.mean * cost.bits:.2g}"),
            f"{paper.bits:.2g}" if paper else "–",
            _reached(rounds, lambda spread: f"{spread.mean * cost.seconds:,.0f}"),
            _reached(rounds, lambda spread: f"{spread.mean * cost.paper_seconds:,.0f}"),
            f"{paper.seconds:,.0f}" if paper else "–",
            mean_sd_text(MeanAndSd.of(run.best for run in runs), 4),
        ]


HEADER = (
    "Method",
    *("Rounds", "Paper"),
    *("Bits", "Paper"),
    *("Seconds", "Seconds, downlink quantised", "Paper"),
    "Best accuracy",
)


def first_reached(trace: Sequence[float | None], target: float) -> int | None:
    """The first round whose score is at least the target; the trace starts before round 1."""
    return next((place for place, score in enumerate(trace) if score is not None and score >= target), None)


def _reached(rounds: Sequence[int | None], text: Callable[[MeanAndSd], str]) -> str:
    """The mean over the runs that got there, and how many did where not all."""
    spread = MeanAndSd.of(rounds)
    if spread is None:
        return f"none of {len(rounds)}"
    return text(spread) + (f" ({spread.count} of {len(rounds)})" if spread.count < len(rounds) else "")
