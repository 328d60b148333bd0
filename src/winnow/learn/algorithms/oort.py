"""Oort (Lai et al., 2021, algorithm 1): select clients whose samples have high losses and whose devices are quick."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from winnow.core import Population, Reply, Until
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.client_loss_requests import (
    START_LOSS_RMS,
    reported_metric,
    reporting_clients,
    request_losses,
    seconds_of,
)
from winnow.learn.selection import (
    TINY,
    SelectedClients,
    Selection,
    SelectionContext,
    SelectorWithoutReplacement,
    draw,
)


class UtilitySelector(SelectorWithoutReplacement):
    """(u_k + √(0.1·log R / L_k)) · (T / t_k)^`penalty`, where u_k is U_k = n_k·√(mean loss²) over all of a client's
    samples, normalised to [0, 1] over the clients (algorithm 1; the authors' code normalises).

    R is the round, L_k the last round in which the client took part, t_k how long it took; the last factor only counts
    where t_k exceeds the preferred duration T. U_k is clipped at the `clip_quantile` of all before it is normalised:
    the code clips it afterwards, but then one reported loss could press all others to zero.

    `overcommit`·K clients are selected, and the first K replies end the round (section 7.1). Those that were too late
    count as tried, with the mean utility of the round and at least its duration, as in the code.

    A share of the selected, which falls from `exploration` by `exploration_decay` a round to `exploration_min`, is
    drawn from those never tried by their speed (algorithm 1): by n_k·(T / s_k)^`penalty` where s_k exceeds T, as in the
    code. The authors know s_k from the device model. Here it is measured: before round 1 every client is sent the
    model and reports its loss, and T is taken over these times. `explore_by` = "uniform" saves that exchange. The
    others are drawn by utility from the clients that reach `cut_off` times the utility of the last who would be among
    the best.

    T is the percentile `preferred_percentile` of the measured durations, so that it fits any fleet. At the end of every
    `pacer_window` rounds in which less utility was gathered than in as many before, it is raised by `pacer_step`.
    Clients that took part more than `max_participations` times are left out while enough others remain.
    """

    name: Literal["utility"] = "utility"
    overcommit: float = Field(1.3, ge=1)
    exploration: float = Field(0.9, ge=0, le=1)
    exploration_decay: float = Field(0.98, gt=0, le=1)
    exploration_min: float = Field(0.2, ge=0, le=1)
    explore_by: Literal["speed", "uniform"] = "speed"
    penalty: float = Field(2.0, ge=0)
    cut_off: float = Field(0.95, ge=0, le=1)
    clip_quantile: float = Field(0.95, gt=0, le=1)
    preferred_percentile: float = Field(30.0, ge=0, le=100)
    pacer_step: float = Field(5.0, ge=0, le=100)
    pacer_window: int = Field(20, ge=1)
    max_participations: int | None = Field(None, ge=1)

    @property
    def needs_start_loss(self) -> bool:
        return True

    @property
    def requests_losses(self) -> bool:
        return self.explore_by == "speed"

    def start(self, population: Population) -> Selection:
        return _UtilitySelection(self, population)


class _UtilitySelection(Selection):
    def __init__(self, settings: UtilitySelector, population: Population) -> None:
        clients = len(population)
        self._settings, self._sizes = settings, population.sizes
        self._awaited = settings.cohort_size(clients)
        self._cohort_size = min(clients, round(settings.overcommit * self._awaited))
        self._utility, self._seconds = np.zeros(clients), np.zeros(clients)
        self._probe_seconds = np.full(clients, np.nan)
        self._last, self._times = np.zeros(clients, np.int64), np.zeros(clients, np.int64)
        self._selected = np.zeros(0, np.int64)
        self._gathered = np.zeros(0)
        self._preferred = settings.preferred_percentile

    def propose(self, context: SelectionContext) -> SelectedClients:
        if self._settings.explore_by == "speed" and context.version == 0 and np.isnan(self._probe_seconds).all():
            replies = request_losses(context, np.arange(len(self._sizes)), always_send_model=True)
            self._probe_seconds[reporting_clients(replies)] = seconds_of(replies)
        tried, untried = self._within_max_participations()
        exploring = min(
            len(untried), max(round(self._exploration(context) * self._cohort_size), self._cohort_size - len(tried))
        )
        exploited = self._exploit(context, tried, self._cohort_size - exploring)
        explored = self._explore(context, untried, exploring)
        self._selected = np.sort(np.concatenate([exploited, explored]))
        counts = np.ones(len(self._selected), np.int64)
        return SelectedClients(clients=self._selected, counts=counts, until=Until(replies=self._awaited))

    def _exploration(self, context: SelectionContext) -> float:
        settings = self._settings
        return max(settings.exploration_min, settings.exploration * settings.exploration_decay ** (context.round - 1))

    def _within_max_participations(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Those that were tried, and those that were not."""
        allowed = np.ones(len(self._times), bool)
        if self._settings.max_participations is not None:
            unlisted = self._times <= self._settings.max_participations
            allowed = unlisted if unlisted.sum() >= self._cohort_size else allowed
        tried = self._last > 0
        return np.flatnonzero(allowed & tried), np.flatnonzero(allowed & ~tried)

    def _explore(self, context: SelectionContext, untried: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        known = self._probe_seconds[np.isfinite(self._probe_seconds)]
        if count == 0 or len(known) == 0:
            return context.rng.choice(untried, count, replace=False)
        duration = np.percentile(known, self._preferred)
        seconds = np.nan_to_num(self._probe_seconds[untried], nan=known.max())  # who did not answer is slow
        slowness = np.log(np.maximum(seconds, TINY)) - np.log(max(duration, TINY))
        log_weights = np.log(self._sizes[untried]) - self._settings.penalty * np.maximum(slowness, 0)
        result: NDArray[np.int64] = untried[draw(log_weights, count, context.rng, replacement=False).clients]
        return result

    def _exploit(self, context: SelectionContext, tried: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        if count == 0:
            return tried[:0]
        utilities = self._utilities(context, tried)
        last_of_best = np.partition(utilities, len(tried) - count)[len(tried) - count]
        good = utilities >= self._settings.cut_off * last_of_best
        drawn = draw(np.log(np.maximum(utilities[good], TINY)), count, context.rng, replacement=False)
        result: NDArray[np.int64] = tried[good][drawn.clients]
        return result

    def _utilities(self, context: SelectionContext, tried: NDArray[np.int64]) -> NDArray[np.float64]:
        utility, seconds = self._utility[tried], self._seconds[tried]
        clipped = np.minimum(utility, np.quantile(utility, self._settings.clip_quantile))
        spread = clipped.max() - clipped.min()
        normalised = np.divide(clipped - clipped.min(), spread, out=np.zeros(len(tried)), where=spread > 0)
        uncertainty = np.sqrt(0.1 * np.log(context.round) / self._last[tried])
        duration = np.percentile(seconds, self._preferred)
        quickness = np.divide(duration, seconds, out=np.ones(len(tried)), where=seconds > duration)
        result: NDArray[np.float64] = (normalised + uncertainty) * quickness**self._settings.penalty
        return result

    def observe(self, context: SelectionContext, replies: Sequence[Reply]) -> None:
        clients = reporting_clients(replies)
        self._utility[clients] = self._sizes[clients] * reported_metric(replies, START_LOSS_RMS, otherwise=0.0)
        self._seconds[clients] = seconds_of(replies)
        self._last[clients] = context.round
        self._times[clients] += 1
        if len(clients):
            late = np.setdiff1d(self._selected, clients)
            self._utility[late] = self._utility[clients].mean()
            self._seconds[late] = np.maximum(self._seconds[late], self._seconds[clients].max())
            self._last[late] = context.round
        self._pace(context, self._utility[clients].sum())

    def _pace(self, context: SelectionContext, gathered: float) -> None:
        """Be content with slower clients where the quick ones have less and less to give."""
        window = self._settings.pacer_window
        self._gathered = np.append(self._gathered, gathered)[-2 * window :]
        before, lately = self._gathered[:-window], self._gathered[-window:]
        if context.round % window == 0 and len(before) == window and before.sum() > lately.sum():
            self._preferred = min(100.0, self._preferred + self._settings.pacer_step)

    def state(self) -> Mapping[str, Any]:
        return {
            "utility": self._utility,
            "seconds": self._seconds,
            "last": self._last,
            "times": self._times,
            "gathered": self._gathered,
            "preferred": np.array([self._preferred]),
            "probe_seconds": self._probe_seconds,
            "selected": self._selected,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._utility, self._seconds = np.array(state["utility"]), np.array(state["seconds"])
        self._last, self._times = np.array(state["last"]), np.array(state["times"])
        self._gathered, self._preferred = np.array(state["gathered"]), float(state["preferred"][0])
        self._probe_seconds, self._selected = np.array(state["probe_seconds"]), np.array(state["selected"])


oort = Recipe(
    name="oort",
    summary="selection by loss and speed, partial aggregation",
    select=UtilitySelector,
    aggregate=PartialAggregation,
)
