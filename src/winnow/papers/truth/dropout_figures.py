"""Figures 3 to 5: how many are left, and how often too few are."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from winnow.core import stream
from winnow.papers.paper import ReproductionOptions
from winnow.papers.truth.curve_item import CurveItem
from winnow.papers.truth.simulated_run import AS_IS, KEPT, one_event, run_with_leavers

PARTICIPANTS, ITERATIONS = 100, 10
MIN_THRESHOLD = 2
"""With which no run ends early."""
RUNS = 20
"""Of a seed, where failures are counted."""
STEPS = tuple(float(number) for number in range(1, ITERATIONS + 1))
SECURE_AGGREGATION = "secure aggregation"
"""The paper's rival, which takes two connections an iteration."""


def _left(probability: float, connections: float) -> float:
    return float((1 - probability) ** connections)


@dataclass(frozen=True, kw_only=True)
class DataLeftFigure(CurveItem):
    """Figure 3: data behind a sum, of 100."""

    losses: tuple[float, ...] = (0.01, 0.05, 0.1)

    def curves(self) -> list[tuple[str, tuple[float, ...]]]:
        ways = ("FedTruthFinder", KEPT.name, SECURE_AGGREGATION)
        return [(f"{way}, p = {loss:g}", STEPS) for way in ways for loss in self.losses]

    def measured_values(
        self, series: str, places: Sequence[float], seed: int, wanted: ReproductionOptions
    ) -> Iterable[float]:
        way, loss = _way_and_loss(series)
        if way == SECURE_AGGREGATION:  # which this paper's own protocol is compared with; nothing of ours runs it
            gone = stream(seed, "truth", "secure aggregation", series).geometric(loss, PARTICIPANTS)
            return [float((gone > 2 * x).sum()) for x in places]
        _, there = run_with_leavers(one_event(PARTICIPANTS), KEPT, dropout=loss, seed=seed, threshold=MIN_THRESHOLD)
        if way == KEPT.name:  # whoever dealt once stays in the sums
            return [float(len(there[0]))] * len(places)
        return [float(len(each)) for each in there]

    def expected(self, series: str, x: float) -> float | None:
        way, loss = _way_and_loss(series)
        connections = {KEPT.name: 1.0, SECURE_AGGREGATION: 2 * x}.get(way, x)
        return PARTICIPANTS * _left(loss, connections)


@dataclass(frozen=True, kw_only=True)
class FailureFigure(CurveItem):
    """Figure 4: how often fewer than t are left after an iteration."""

    losses: tuple[float, ...] = (0.05, 0.1)

    def curves(self) -> list[tuple[str, tuple[float, ...]]]:
        return [
            (f"{way}, p = {loss:g}", STEPS) for way in ("FedTruthFinder", SECURE_AGGREGATION) for loss in self.losses
        ]

    def measured_values(
        self, series: str, places: Sequence[float], seed: int, wanted: ReproductionOptions
    ) -> Iterable[float]:
        way, loss = _way_and_loss(series)
        if way == SECURE_AGGREGATION:
            gone = stream(seed, "truth", "secure aggregation", series).geometric(loss, (RUNS, PARTICIPANTS))
            return [float(((gone > 2 * x).sum(axis=1) < PARTICIPANTS // 2).mean()) for x in places]
        answers, seeds = one_event(PARTICIPANTS), range(RUNS * seed, RUNS * (seed + 1))
        finished = [run_with_leavers(answers, AS_IS, dropout=loss, seed=each)[0].round for each in seeds]
        return [float(np.mean(np.array(finished) < x)) for x in places]

    def expected(self, series: str, x: float) -> float | None:
        way, loss = _way_and_loss(series)
        left = _left(loss, 2 * x if way == SECURE_AGGREGATION else x)
        return float(binom.cdf(PARTICIPANTS // 2 - 1, PARTICIPANTS, left))


@dataclass(frozen=True, kw_only=True)
class RankingFailureFigure(CurveItem):
    """Figure 5: how often the paper's ranking fails, since a group has nobody left; the rival needs all of 2t + 1."""

    thresholds: tuple[float, ...] = (10.0, 15.0, 20.0, 25.0)
    losses: tuple[float, ...] = (0.01, 0.05, 0.1)

    def curves(self) -> list[tuple[str, tuple[float, ...]]]:
        return [(f"{way}, p = {loss:g}", self.thresholds) for way in ("groups", "rival") for loss in self.losses]

    def measured_values(
        self, series: str, places: Sequence[float], seed: int, wanted: ReproductionOptions
    ) -> Iterable[float]:
        """Drawn many times: of groups as equal as 100 participants allow, one is empty; of 2t + 1, one is gone."""
        way, loss = _way_and_loss(series)
        rng = stream(seed, "truth", "ranking", series)
        for t in places:
            parts = 2 * int(t) + 1
            sizes = np.full(parts, 1) if way == "rival" else np.bincount(np.arange(PARTICIPANTS) % parts)
            empty = rng.random((100_000, parts)) < loss**sizes
            yield float(empty.any(axis=1).mean())

    def expected(self, series: str, x: float) -> float | None:
        """As theorem 5.3 has it, but with the exponent n/(2t + 1) not rounded down, as the paper's numbers have it."""
        way, loss = _way_and_loss(series)
        parts = 2 * x + 1
        return float(1 - (1 - loss ** (1 if way == "rival" else PARTICIPANTS / parts)) ** parts)


def _way_and_loss(series: str) -> tuple[str, float]:
    way, _, loss = series.rpartition(", p = ")
    return way, float(loss)
