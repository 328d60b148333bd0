"""A table of an ensemble and its rivals, each tuned on seeds of its own, and their paired differences from FL."""

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any

import numpy as np

from winnow.config.resolve import resolve
from winnow.config.schema import Experiment
from winnow.core import stream
from winnow.papers.ensemble.ensemble_rows import FL, EnsembleRow
from winnow.papers.ensemble.leaf_family import OVER, Reading, family_traces, loaded, model_trace
from winnow.papers.ensemble.opt_in_rivals import TUNED, opt_in_trace
from winnow.papers.page_blocks import PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem, ReproductionOptions
from winnow.papers.result_json_lines import ResultLine, ResultLines, RunResultLine, lines_by_key, run_result_lines
from winnow.privacy.dp.privacy_loss import GaussianRelease, epsilon, least_noise
from winnow.report import MeanAndSd
from winnow.report.number_format import mean_sd_text
from winnow.report.paired_differences import MeanAndError, difference_text

TUNING_SEEDS = (1000,)
"""Seeds by which settings are chosen; they are not reported."""
HEADER = ("Row", "AUC, test", "Gain over FL, %", "Mean over its error", "Settings chosen")
MISSING = "–"
DELTA, CLIP = 1e-5, 0.5
CENTRAL_RATE = 0.1
"""Of training on the opt-in samples alone, in batches of 64 at the server."""


@dataclass(frozen=True, kw_only=True)
class TriedSettings:
    """One of the settings that every row is tried with."""

    name: str
    rate: float
    """The server's, of Adam on the clients' mean update."""
    over_rate: float


@dataclass(frozen=True, kw_only=True)
class RivalTable(PaperItem):
    """All rows, each under those settings that were best on a seed of its own."""

    preset: str
    rows: tuple[EnsembleRow, ...]
    tried: tuple[TriedSettings, ...]
    about: str
    sets: tuple[str, ...] = ()
    epsilon: float | None = None
    """What every client may spend; None: there is no noise."""
    left_out_users: float = 0.0
    """The share of users whose rows are the test set, drawn anew by each seed."""

    @property
    def names(self) -> set[str]:
        return {self.name}

    def data_sets(self, wanted: ReproductionOptions) -> set[str]:
        return {self.experiment(FL, self.tried[0], 0, wanted).data.name}

    def _stages(self, wanted: ReproductionOptions) -> list[Sequence[int]]:
        """The seeds by which settings are chosen, and those that are reported."""
        return [*([TUNING_SEEDS] if len(self.tried) > 1 else []), range(wanted.seeds)]

    def experiment(self, row: EnsembleRow, tried: TriedSettings, seed: int, wanted: ReproductionOptions) -> Experiment:
        sets = (*self.sets, f"server.learning_rate={tried.rate}", *wanted.sets)
        found = resolve(self.preset, sets=sets, seed=seed, rounds=wanted.rounds)
        table: dict[str, Any] = found.model_dump(exclude_none=True)
        table["model"] = {**table["model"], "hidden": row.hidden}
        table.pop("ensemble", None)
        if (section := row.ensemble(tried.over_rate)) is not None:
            table["ensemble"] = section
        if self.epsilon is not None:
            passes = row.clusters["count"] if row.clusters and row.clusters["name"] == "everybody" else 1
            noise = noise_for(self.epsilon, found.rounds * passes, found.select.fraction or 1.0)
            table["collect"] = {"name": "central-dp", "noise_multiplier": noise, "clip": CLIP, "delta": DELTA}
        if self.left_out_users:
            names = np.array([str(number) for number in range(1, 944)])
            count = round(self.left_out_users * len(names))
            out = stream(seed, "papers", "left-out users").permutation(names)[:count]
            table["data"] = {**table["data"], "left_out": sorted(out.tolist(), key=int)}
            table["data"].pop("test", None)
        return Experiment.model_validate(table)

    def measured(self, wanted: ReproductionOptions, lines: ResultLines) -> bool:
        seeds = [seed for stage in self._stages(wanted) for seed in stage]
        return not any(self.left(tried, seed, lines) for seed in seeds for tried in self.tried)

    def left(self, tried: TriedSettings, seed: int, lines: ResultLines) -> list[tuple[EnsembleRow, ...]]:
        """The rows that lack a result, together where they share leaves."""
        families: dict[str, list[EnsembleRow]] = {}
        for row in self.rows:
            if self._is_due(row, tried, seed, lines):
                families.setdefault(row.name if row.clusters is None else str(row.clusters), []).append(row)
        return [tuple(rows) for rows in families.values()]

    def _is_due(self, row: EnsembleRow, tried: TriedSettings, seed: int, lines: ResultLines) -> bool:
        """Whether a result is missing. Seeds that are reported wait until the row's settings have been chosen."""
        if (self.name, key(row, tried), str(seed)) in lines:
            return False
        if len(self.tried) == 1 or seed in TUNING_SEEDS:
            return True
        tuned = all((self.name, key(row, each), str(other)) in lines for each in self.tried for other in TUNING_SEEDS)
        return tuned and self.chosen(row, lines)[0] == tried.name

    def measure(self, wanted: ReproductionOptions, lines: ResultLines) -> Iterator[ResultLine]:
        known = dict(lines)
        with ProcessPoolExecutor(wanted.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            for seeds in self._stages(wanted):
                found = [
                    pool.submit(self.measure_rows, rows, tried, seed, wanted)
                    for seed in seeds
                    for tried in self.tried
                    for rows in self.left(tried, seed, known)
                ]
                for each in as_completed(found):
                    known |= lines_by_key(each.result())
                    yield from each.result()

    def measure_seeds(
        self, seeds: Sequence[int], wanted: ReproductionOptions, lines: ResultLines
    ) -> Iterator[ResultLine]:
        """What the lines lack of these seeds, one after the other in this process; rows are tuned first."""
        known = dict(lines)
        for seed in (*(TUNING_SEEDS if len(self.tried) > 1 else ()), *seeds):
            for tried in self.tried:
                for rows in self.left(tried, seed, known):
                    found = self.measure_rows(rows, tried, seed, wanted)
                    known |= lines_by_key(found)
                    yield from found

    def measure_rows(
        self, rows: Sequence[EnsembleRow], tried: TriedSettings, seed: int, wanted: ReproductionOptions
    ) -> list[RunResultLine]:
        """Rows that share leaves, or one that has none."""
        row = max(rows, key=lambda each: each.combine == OVER)
        experiment = self.experiment(row, tried, seed, wanted)
        inputs = loaded(experiment.data, wanted.data_directory)
        if row.clusters is not None:
            traces = family_traces(experiment, [each.combine for each in rows], inputs)
        elif row.opt_in is not None:
            rate = tried.over_rate if row.opt_in == TUNED else CENTRAL_RATE
            traces = {row.combine: opt_in_trace(experiment, inputs, row.opt_in, rate)}
        else:
            traces = {row.combine: model_trace(experiment, inputs)}
        return [self._line(each, tried, seed, traces[each.combine]) for each in rows]

    def _line(self, row: EnsembleRow, tried: TriedSettings, seed: int, trace: Sequence[Reading]) -> RunResultLine:
        """The test score of the round that is best by the reference set."""
        best = max(trace)
        return RunResultLine(
            item=self.name,
            algorithm=key(row, tried),
            seed=seed,
            rounds=len(trace),
            best=best[0],
            test_best=best[1],
            trace=tuple(round(reference, 4) for reference, _ in trace),
        )

    def has_results(self, lines: ResultLines) -> bool:
        return any(found for row in self.rows for found in self._found(row, lines).values())

    def _found(self, row: EnsembleRow, lines: ResultLines) -> dict[str, list[RunResultLine]]:
        return {tried.name: run_result_lines(lines, self.name, key(row, tried)) for tried in self.tried}

    def chosen(self, row: EnsembleRow, lines: ResultLines) -> tuple[str, dict[int, float]]:
        """The settings with the best mean on the tuning seeds' reference sets, and the test scores by other seed."""
        found = {name: runs for name, runs in self._found(row, lines).items() if runs}
        if not found:
            return MISSING, {}

        def tuned(name: str) -> float:
            scores = [run.best for run in found[name] if run.seed in TUNING_SEEDS and run.best is not None]
            return fmean(scores) if scores else -np.inf

        best = max(found, key=tuned)
        shown = {run.seed: run.test_best for run in found[best] if run.seed not in TUNING_SEEDS}
        return best, {seed: score for seed, score in shown.items() if score is not None}

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        if not self.has_results(lines):
            return [TextBlock(self.about), TextBlock("Not run: there are no records of it.")]
        _, base = self.chosen(FL, lines)
        cells = [self._cells(row, lines, base) for row in self.rows]
        caption = (
            "Mean ± standard deviation over seeds, whose number is in brackets, and the relative difference from FL on"
            " the same seeds with its standard error."
        )
        if len(self.tried) > 1:
            caption += (
                f" Every row was tried with the same {len(self.tried)} settings on another seed; the"
                " best by the reference set is shown."
            )
        return [TextBlock(self.about), TableBlock(caption, HEADER, cells)]

    def _cells(self, row: EnsembleRow, lines: ResultLines, base: dict[int, float]) -> list[str]:
        settings, scores = self.chosen(row, lines)
        gain = MeanAndError.of((100 * scores[seed] / base[seed], 100.0) for seed in sorted(scores) if seed in base)
        strength = MISSING if gain is None or not gain.error else f"{gain.mean / gain.error:.1f}".replace("-", "−")
        return [
            f"{row.title} ({len(scores)})" if scores else row.title,
            mean_sd_text(MeanAndSd.of(scores.values()), 4) if scores else MISSING,
            MISSING if row is FL else difference_text(gain, 2),
            MISSING if row is FL else strength,
            settings if len(self.tried) > 1 else "",
        ]


@cache
def noise_for(wanted: float, rounds: int, sampled: float) -> float:
    """The noise with which so many rounds stay within an ε."""

    def lasts(noise: float) -> bool:
        return epsilon([GaussianRelease(noise=noise, times=rounds, sampling_probability=sampled)], DELTA) <= wanted

    found = least_noise(lasts)
    assert found is not None
    return found


def key(row: EnsembleRow, tried: TriedSettings) -> str:
    return f"{row.name}@{tried.name}"
